"""Scores the engines' budgets on measured points of real engines' logs.

    python bench/groundtruth.py                              # the points of bench/data
    python bench/groundtruth.py --points FILE… --models FILE… [--json] [--leave-one-out]

A line per point and check: predicted, logged, relative error, verdict, or why it was skipped; then a summary by check,
engine and kind, with the formulas of other planners on the same points (``peers.py``). ``--leave-one-out`` fits the
constants of vLLM's table again without each model in turn (``scoring/leaveout.py``). Exit status 1 where a check fails.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from scoring import fitchecks, hybrid, kvchecks, leaveout, rates, report
from scoring.models import Models
from scoring.points import Point, lines
from scoring.score import Score, skip

DATA = Path(__file__).parent / "data"


def scores(points: Iterable[tuple[Point, str]], models: Models) -> Iterator[Score]:
    """Every check of every point. A point on which nothing can be checked has one skipped score that says so."""
    for point, wrong in points:
        if wrong:
            yield skip(point, "bytes_per_token", wrong)
            continue
        shape = point.unread or models.of(point)
        found = (
            rates.check(point, shape),
            kvchecks.check(point, shape, given=True),
            kvchecks.check(point, shape, given=False),
            hybrid.check(point, shape),
            fitchecks.check(point, shape),
            fitchecks.check_batch(point, shape),
        )
        made = [score for score in found if score is not None]
        yield from made or [skip(point, "bytes_per_token", _nothing(point, shape))]


def _nothing(point: Point, shape: object) -> str:
    if isinstance(shape, str):
        return shape
    why = point.check.get("why_no_rate")
    return str(why) if isinstance(why, str) else "the log prints nothing that can be compared"


def read(paths: Iterable[Path]) -> Iterator[tuple[Point, str]]:
    """Points of several files, each with the reason why its line cannot be read (empty where it can)."""
    for path in paths:
        for raw, wrong in lines(path):
            yield Point(raw), wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score the engines' budgets on measured points.")
    parser.add_argument("--points", type=Path, nargs="+", default=sorted(DATA.glob("points-*.jsonl")))
    parser.add_argument("--models", type=Path, nargs="+", default=sorted(DATA.glob("models-*.jsonl")))
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--leave-one-out", action="store_true", help="fit the constants again without each model")
    told = parser.parse_args(arguments)
    for path in (*told.points, *told.models):
        if not path.is_file():
            print(f"{path}: no such file; give files of JSON lines", file=sys.stderr)
            return 2
    models, points = Models(told.models), list(read(told.points))
    made = list(scores(points, models))
    figures = report.summary(made)
    extra = leaveout.run([p for p, wrong in points if not wrong], models) if told.leave_one_out else {}
    if told.json:
        document = {"points": [s.as_json() for s in made], "summary": figures}
        print(json.dumps(document | ({"leave_one_out": extra} if extra else {}), indent=1))
    else:
        print("\n".join([*map(report.line, made), "", *report.summary_lines(figures)]))
        if extra:
            print("\n".join(["", *leaveout.text(extra)]))
    return 1 if any(s.ok is False for s in made) else 0


if __name__ == "__main__":
    sys.exit(main())
