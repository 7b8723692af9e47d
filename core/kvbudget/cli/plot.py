"""``--plot``: stacked memory bars, and KV against context and concurrency. Needs matplotlib (extra ``[plot]``)."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from kvbudget.errors import InputError
from kvbudget.planner.bar import parts
from kvbudget.planner.question import Answer

_KINDS: Final = (".png", ".svg", ".pdf")
_AT_ONCE: Final = (1, 4, 16, 64)
_POINTS: Final = 64
_GIB: Final = 1024**3
_DPI: Final = 120


def check(path: str) -> None:
    """Whether a plot can be drawn there, before anything is computed. Raises InputError."""
    if Path(path).suffix.lower() not in _KINDS:
        raise InputError("--plot", f"{path[:80]!r} does not end in one of {', '.join(_KINDS)}")
    target = Path(path)
    try:
        if target.is_dir():
            raise InputError("--plot", f"{path[:80]!r} cannot be written: it is a folder; name a file in it")
        if not target.parent.is_dir():
            raise InputError("--plot", f"{path[:80]!r} cannot be written: there is no such folder; make it first")
    except (OSError, ValueError) as error:
        raise InputError("--plot", f"{path[:80]!r} cannot be written: {error}; check the path") from None
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("--plot", "needs matplotlib; install it with: pip install 'kvbudget[plot]'") from None


def draw(path: str, bars: Sequence[tuple[str, Answer]], answer: Answer) -> None:
    """Writes the picture. ``bars``: label and plan of each bar, the decisive GPU; the curves are of ``answer``. Raises
    InputError where the file cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _memory(left, bars)
    _curves(right, answer)
    plan = answer.budget
    figure.suptitle(f"{answer.question.model}, {plan.engine} {plan.version}".rstrip())
    picture = BytesIO()
    figure.savefig(picture, dpi=_DPI, format=Path(path).suffix.lower().removeprefix("."))
    try:
        Path(path).write_bytes(picture.getvalue())
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        detail = error.strerror if isinstance(error, OSError) else None
        raise InputError(repr(path), f"cannot be written: {detail or error}; check the path") from None


def _memory(axes: Any, bars: Sequence[tuple[str, Answer]]) -> None:
    shown: dict[str, Any] = {}
    for index, (_, answer) in enumerate(bars):
        bottom = 0.0
        for part in parts(answer)[0]:
            colour = shown.get(part.name)
            drawn = axes.bar(
                index, part.size / _GIB, bottom=bottom, color=colour, label=None if part.name in shown else part.name
            )
            shown.setdefault(part.name, drawn.patches[0].get_facecolor())
            bottom += part.size / _GIB
        memory = answer.question.device.card.memory_bytes / _GIB
        axes.plot([index - 0.45, index + 0.45], [memory, memory], color="black", linewidth=2)
    axes.set_xticks(range(len(bars)), [label for label, _ in bars], rotation=20, ha="right", fontsize=8)
    axes.set_ylabel("GiB of one GPU (black line: what it has)")
    axes.legend(fontsize=8)


def _curves(axes: Any, answer: Answer) -> None:
    plan, pool = answer.budget, answer.budget.worst.pool
    lengths = [max(1, plan.max_model_len * step // _POINTS) for step in range(1, _POINTS + 1)]
    for requests in _AT_ONCE:
        sizes = [requests * pool.pages_for(n) * pool.page_bytes / _GIB for n in lengths]
        axes.plot(lengths, sizes, label=f"{requests} at once")
    low, expected = (max(0, pages) * pool.page_bytes / _GIB for pages in (plan.pages.low, plan.pages.expected))
    axes.axhspan(low, expected, alpha=0.2, color="black")
    axes.axhline(low, color="black", linewidth=1, label="KV of one replica, low end")
    axes.set_ylim(0, max(2 * expected, 1.0))
    axes.set_xlabel("tokens of each request")
    axes.set_ylabel("KV, GiB per GPU")
    axes.legend(fontsize=8)
