"""Scores as lines of text, a summary by check and kind, and JSON."""

import statistics
from collections.abc import Iterable

from scoring.score import CHECKS, Score


def line(score: Score) -> str:
    """One comparison in one line."""
    head = f"{score.id}  {score.check}"
    if score.skipped:
        return f"{head}  skipped: {score.skipped}"
    mark = "ok" if score.ok else "WRONG"
    err = "" if score.rel_err is None else f"  {score.rel_err:+.2%}"
    numbers = f"predicted {_number(score.predicted)}  logged {_number(score.logged)}{err}"
    return f"{head}  {numbers}  {mark}" + (f"  ({score.verdict})" if score.verdict else "")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.2f}"


def summary(scores: Iterable[Score]) -> dict[str, dict[str, object]]:
    """Per check, and per kind within it: how many, errors, shares; and the errors of each peer on the same points."""
    found: dict[str, dict[str, object]] = {}
    everything = list(scores)
    for check in CHECKS:
        rows = [s for s in everything if s.check == check]
        kinds = {s.kind for s in rows}
        if rows:
            found[check] = _figures(rows)
        if len(kinds) > 1:
            for kind in sorted(kinds):
                found[f"{check} | {kind}"] = _figures([s for s in rows if s.kind == kind])
    return found


def _figures(rows: list[Score]) -> dict[str, object]:
    scored = [s for s in rows if s.ok is not None]
    figures: dict[str, object] = {
        "points": len(rows),
        "scored": len(scored),
        "ok": sum(bool(s.ok) for s in scored),
        "skipped": len(rows) - len(scored),
    }
    errors = [abs(s.rel_err) for s in scored if s.rel_err is not None]
    if errors and all(s.check != "fits" for s in scored):
        figures |= spread(errors)
    banded = [s.inside for s in scored if s.inside is not None]
    if banded and all(s.check.startswith("kv_") for s in scored):
        figures["inside_band"] = sum(banded) / len(banded)
    peers = peer_errors(scored)
    if peers:
        figures["peers"] = peers
    return figures


def spread(errors: list[float]) -> dict[str, object]:
    """Mean, median, 90th percentile and worst of absolute relative errors."""
    ordered = sorted(errors)
    return {
        "mean": statistics.fmean(ordered),
        "median": statistics.median(ordered),
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "worst": ordered[-1],
    }


def peer_errors(scored: list[Score]) -> dict[str, object]:
    """The same of every other planner."""
    errors: dict[str, list[float]] = {}
    for score in scored:
        for name, value in score.peers:
            if score.logged:
                errors.setdefault(name, []).append(abs(value - score.logged) / score.logged)
    return {name: spread(found) for name, found in errors.items()}


def summary_lines(figures: dict[str, dict[str, object]]) -> list[str]:
    """The summary as text."""
    out = []
    for name, row in figures.items():
        text = f"{name}: {row['scored']} of {row['points']} scored, {row['ok']} ok"
        if "mean" in row:
            text += "; " + _spread_text(row)
        if "inside_band" in row:
            text += f", inside the band {row['inside_band']:.0%}"
        out.append(text)
        peers = row.get("peers")
        if isinstance(peers, dict):
            out += [f"    {peer}: {_spread_text(values)}" for peer, values in peers.items()]
    return out


def _spread_text(row: dict[str, object]) -> str:
    return ", ".join(f"{name} {row[name]:.2%}" for name in ("mean", "median", "worst"))
