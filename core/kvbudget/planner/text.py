"""Answers as lines for people. Pure: the width is an argument, and nothing is coloured here."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from kvbudget.engines import Band, Settings
from kvbudget.engines.result import StageBudget, Term
from kvbudget.planner.bar import bar, legend, parts
from kvbudget.planner.describe import Explained
from kvbudget.planner.gains import Remedy, cause
from kvbudget.planner.grid import Cell
from kvbudget.planner.layerview import LayerRow, sequence_bytes
from kvbudget.planner.question import Answer
from kvbudget.planner.traffic import Size
from kvbudget.quantity import format_bytes
from kvbudget.weights import count, stored_bytes, total_parameters

_GIB: Final = 1024**3
_LABEL: Final = 28
_SHOUT: Final = {"fits": "FITS", "at risk": "AT RISK", "does not fit": "DOES NOT FIT", "refused": "REFUSED"}


def plan_lines(answer: Answer, remedies: Sequence[Remedy], width: int) -> Iterator[str]:
    """One plan: every term with low, expected and high, the bar, the verdict, the remedies."""
    plan, question, used = answer.budget, answer.question, answer.told
    version = f" {plan.version}" if plan.version else ""
    yield f"{question.model} ({question.shape.kind}) on {_gpus(answer)}, {plan.engine}{version}"
    yield (
        f"  tensor parallel {used.tensor_parallel}, pipeline parallel {used.pipeline_parallel}, {_copies(used)}"
        f"KV {plan.kv_precision}, sequences {used.max_sequences}, batched tokens {used.max_batched_tokens}"
    )
    yield ""
    yield from _stage_lines(answer, plan.worst, used.memory_fraction)
    for stage in plan.stages if len(plan.stages) > 1 else ():
        kv = stage.kv
        yield f"    stage {stage.stage + 1}: {stage.layers} layers, KV {_gib(kv.low)} … {_gib(kv.high)} GiB"
    yield ""
    found, missing = parts(answer)
    yield f"  {bar(found, width - 4)}"
    yield from wrapped(f"GiB: {legend(found)}" + (f"; {_gib(missing)} GiB too much" if missing else ""), width, "  ")
    yield ""
    yield f"{_SHOUT[answer.verdict]}: {answer.reason}"
    low, expected, high = answer.concurrency()
    counts = f"{low:g} at least, {expected:g} expected, {high:g} at most"
    yield f"  requests of {plan.max_model_len} tokens at once: {counts}"
    reason = cause(answer)
    if reason is not None:
        yield f"  cause: {reason.text}"
    yield from _remedy_lines(answer, remedies)
    for note in answer.notes:
        yield from wrapped(f"note: {note}", width, "  ")


def what_if_lines(model: str, cells: Sequence[Cell], shown: int, *, priced: bool) -> Iterator[str]:
    """The first ``shown`` cells as a table, and how many there are."""
    fit = sum(cell.answer.verdict == "fits" for cell in cells)
    order = "the cheapest first" if priced else "the least GPU memory first (give --price to order by price)"
    yield f"{model}: {fit} of {len(cells)} combinations fit, {order}"
    yield ""
    rows = [
        (
            c.answer.question.device.name,
            str(c.answer.question.settings.tensor_parallel),
            c.answer.budget.kv_precision,
            str(c.answer.budget.max_model_len),
            c.answer.verdict,
            f"{c.answer.concurrency()[0]:g}",
            _gib(c.answer.budget.worst.kv.low),
            f"{c.memory_bytes / _GIB:.1f}",
            *(("-" if c.price is None else f"{c.price:.2f}",) if priced else ()),
        )
        for c in cells[:shown]
    ]
    head = (
        "gpu",
        "tp",
        "kv",
        "maxModelLen",
        "verdict",
        "at once ≥",
        "KV GiB ≥",
        "GPU GiB",
        *(("price/h",) if priced else ()),
    )
    yield from table(head, rows, right=(1, 3, 5, 6, 7, 8))
    if len(cells) > shown:
        yield f"… {len(cells) - shown} more; --limit 0 shows all, -o json has every figure"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> Iterator[str]:
    """Columns two spaces apart; those in ``right`` are figures.

    >>> print("\\n".join(table(("a", "n"), [("x", "10"), ("yy", "5")], right=(1,))))
    a    n
    x   10
    yy   5
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cells).rstrip()


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """The text in lines no longer than ``width``, unless a word is."""
    return wrap(
        text,
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _stage_lines(answer: Answer, stage: StageBudget, fraction: float | None) -> Iterator[str]:
    stages, whole = len(answer.budget.stages), answer.question.device.card.memory_bytes
    memory = "as the driver reports it" if stage.memory_bytes == whole else "free once the context exists"
    which = f", stage {stage.stage + 1} of {stages}, which decides" if stages > 1 else ""
    yield f"  {'GiB per GPU' + which:<{_LABEL}}{'low':>10}{'expected':>10}{'high':>10}   source"
    yield f"  {'memory':<{_LABEL}}{'':>10}{_gib(stage.memory_bytes):>10}{'':>10}   {memory}"
    share = f" = memory × {fraction:.3g}" if fraction and stage.usable_bytes != stage.memory_bytes else ""
    yield f"  {'usable' + share:<{_LABEL}}{'':>10}{_gib(stage.usable_bytes):>10}"
    for term in stage.terms:
        yield _term_line("− ", term)
    yield _row("= KV", stage.kv)
    for group in stage.pool.groups[:1]:
        size = format_bytes(stage.pool.page_bytes)
        many = f", {len(stage.pool.groups)} cache groups" if len(stage.pool.groups) > 1 else ""
        held = f", {stage.pool.reserved_pages} held back" if stage.pool.reserved_pages else ""
        pages = stage.pages
        yield (
            f"  {'pages':<{_LABEL}}{pages.low:>10}{pages.expected:>10}{pages.high:>10}   "
            f"{size} each, {group.block_tokens} tokens{many}{held}"
        )
    if stage.outside:
        room = stage.memory_bytes - stage.usable_bytes
        yield f"  {'beside it':<{_LABEL}}{'':>10}{_gib(room):>10}{'':>10}   of which must live there:"
        for term in stage.outside:
            yield _term_line("  ", term)


def _term_line(sign: str, term: Term) -> str:
    return f"{_row(sign + term.name, term.bytes)}   {term.source}"


def _row(label: str, band: Band) -> str:
    return f"  {label:<{_LABEL}}{_gib(band.low):>10}{_gib(band.expected):>10}{_gib(band.high):>10}"


def _copies(used: Settings) -> str:
    """Where there are none, nothing is said."""
    copies = f"data parallel {used.data_parallel}, " if used.data_parallel > 1 else ""
    return copies + ("expert parallel, " if used.expert_parallel else "")


def _remedy_lines(answer: Answer, remedies: Sequence[Remedy]) -> Iterator[str]:
    fits = answer.verdict == "fits"
    enough, short = [r for r in remedies if r.fits], [r for r in remedies if not r.fits]
    together = bool(enough) and all(len(r.parts) > 1 for r in enough)
    title = "to hold more" if fits else "would fit, together" if together else "would fit"
    for head, chosen in ((title, enough), ("gain, but do not suffice alone", short)):
        if chosen:
            yield f"  {head}:"
        for remedy in chosen:
            yield from _remedy_text(remedy)
    if not fits and not enough:
        yield "  nothing that was tried suffices, not even together; kvbudget plan --what-if tries every GPU type"


def _remedy_text(remedy: Remedy) -> Iterator[str]:
    if len(remedy.parts) == 1:
        yield f"    {remedy.text}: {remedy.gain}"
        return
    yield f"    {remedy.text}:"
    for text, gain in remedy.parts:
        yield f"      {text}: {gain}"


def _gpus(answer: Answer) -> str:
    name = answer.question.device.name
    return name if answer.gpus == 1 else f"{answer.gpus} × {name}"


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f}"


def size_lines(answer: Answer, size: Size) -> Iterator[str]:
    """Replicas, and the formula line by line."""
    plan, gpus = answer.budget, size.replicas * answer.gpus
    version = f" {plan.version}" if plan.version else ""
    yield f"{answer.question.model} on {_gpus(answer)}, {plan.engine}{version}"
    for line in size.formula:
        yield f"  {line}"
    why = "KV" if size.bound == "KV" else "the engine's --max-num-seqs, not KV,"
    many = "" if size.replicas == 1 else "s"
    yield f"{size.replicas} replica{many} ({gpus} GPU{'' if gpus == 1 else 's'}): {why} decides"


def explain_lines(seen: Explained, width: int) -> Iterator[str]:
    """A model group by group."""
    shape, rows = seen.shape, seen.rows
    size = shape.weight_bytes or stored_bytes(shape, count(shape))
    longest = shape.max_position_embeddings
    yield f"{seen.name}: {shape.kind}, {shape.layers} layers, {total_parameters(shape) / 1e9:.2f} billion parameters"
    yield f"  weights {shape.weights.name}, {_gib(size)} GiB; " + (
        "length unknown" if longest is None else f"up to {longest} tokens" + (" and more by RoPE" * shape.rope_scaling)
    )
    yield f"  KV in {seen.kv_format}" + ("" if seen.tensor_parallel == 1 else f", one of {seen.tensor_parallel} GPUs")
    yield ""
    cells = [
        (
            row.kind,
            str(row.layers),
            row.heads,
            str(row.token_bytes) if row.token_bytes else "-",
            _kept(row),
            format_bytes(row.state_bytes) if row.state_bytes else "-",
        )
        for row in rows
    ]
    yield from table(("kind", "layers", "heads", "B/token", "tokens kept", "state"), cells, right=(1, 3, 5))
    yield ""
    for tokens in seen.lengths:
        total = sum(sequence_bytes(row, tokens) for row in rows)
        yield f"  one sequence of {tokens} tokens: {format_bytes(total)}"
    fixed = ("compressed caches have one layout, whatever the KV precision: FP8 codes, a 16-bit rope part, scales",)
    for note in (*(fixed * any(row.ratio for row in rows)), *shape.assumptions):
        yield from wrapped(f"note: {note}", width, "  ")


def _kept(row: LayerRow) -> str:
    if not row.token_bytes:
        return "-"
    entry = f", and {row.entry_bytes} B per {row.ratio}" if row.ratio else ""
    return ("all" if row.bound_tokens is None else f"last {row.bound_tokens}") + entry
