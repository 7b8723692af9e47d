"""Is it right on this device? Against the fp64 reference, with NaN wherever no token lives."""

from collections.abc import Iterator

import torch

from gpu.problem import Machine, Step, fill, tables, workspace_for
from gpu.rows import Deadline, Rows
from gpu.variants import VARIANTS, variant_call
from kvbudget_kernels import reference
from kvbudget_kernels.kv_write import kv_write, new_counters
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.plan import SplitPolicy, plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PRECISIONS, Layout, PagedKV, allocate
from kvbudget_kernels.tune import Tiles

ALLOWED = {"FP32": 2e-6, "FP16": 5e-4, "BF16": 4e-3, "FP8E4M3": 5e-4, "INT8": 5e-4, "INT4": 1e-3}
NAN_HALVES = 0x7E007E00
SHAPES = ((1, 64, 16, 1), (4, 128, 64, 1), (7, 128, 64, 1), (8, 128, 32, 4), (16, 80, 64, 2), (4, 256, 64, 1))
"""(group, head_dim, page_tokens, q_len)."""
MASKS = ("plain", "window", "softcap", "sinks and ALiBi")


def poison(cache: PagedKV) -> None:
    """NaN in every slot; codes of token-contiguous V, which are read unmasked, are the largest finite ones."""
    codes = {"FP8E4M3": (0x7F, 0x7E), "INT8": (127, 127), "INT4": (255, 255)}
    key, value = codes.get(cache.layout.precision, (float("nan"), float("nan")))
    cache.key.fill_(key)
    cache.value.fill_(value)
    if cache.scales is not None:
        cache.scales.fill_(NAN_HALVES)


def run(machine: Machine, rows: Rows, deadline: Deadline) -> None:
    for precision, shape, mask in _cases(machine):
        name = f"{precision} G{shape[0]} D{shape[1]} P{shape[2]} q{shape[3]}"
        if deadline.passed:
            rows.add("smoke", name, mask, "skipped", note="deadline")
            continue
        _check(machine, rows, name, mask, precision, shape)
    _variants(machine, rows)
    if machine.timed:
        for precision in ("BF16", "FP8E4M3"):
            if deadline.passed:
                rows.add("smoke", f"{precision} 8 GB", "high pages", "skipped", note="deadline")
            else:
                _large(machine, rows, precision)
        _stages(machine, rows)


def _cases(machine: Machine) -> Iterator[tuple[str, tuple[int, int, int, int], str]]:
    """Every precision with every mask; shapes take turns. 60 on a GPU, 6 in a dry run."""
    if not machine.timed:
        yield from ((p, (2, 32, 16, 1), MASKS[i % 4]) for i, p in enumerate(PRECISIONS))
        return
    for i, precision in enumerate(PRECISIONS):
        for j in range(10):
            yield precision, SHAPES[(i + j) % len(SHAPES)], MASKS[(j + j // 6) % 4]


def _check(
    machine: Machine, rows: Rows, name: str, mask: str, precision: str, shape: tuple[int, int, int, int]
) -> None:
    group, head_dim, page, q_len = shape
    layout = Layout.of(precision, 2, head_dim, page)
    most = 40 * page if machine.timed else 2 * page
    step = Step(name, (0, q_len, page, page + 1, most + 5), 2 * group, layout)
    cache, table, seq_lens = _filled(step, machine)
    rules = _rules(mask, step, machine.device)
    shape4 = (len(step.lengths), q_len, step.attention_heads, head_dim)
    dtype = torch.float32 if precision == "FP32" else machine.dtype
    query = torch.randn(shape4, generator=torch.Generator().manual_seed(1)).to(dtype).to(machine.device)
    policy = SplitPolicy(step.tiles().tile_tokens, units=7)
    workspace = workspace_for(step, policy, machine.device, q_len)
    workspace.part_o.fill_(float("nan"))
    plan(workspace, seq_lens, q_len=q_len, window_tokens=rules.window_tokens)
    tiles = Tiles(step.tiles().tile_tokens, rows=max(16, 1 << (q_len * group - 1).bit_length()), warps=4, stages=3)
    out, lse = paged_decode(query, cache, table, seq_lens, rules, workspace, tiles=tiles)
    want, want_lse = reference.paged_decode(query, cache, table, seq_lens, rules)
    allowed = max(ALLOWED[precision], ALLOWED["BF16"] if dtype == torch.bfloat16 else 0.0)
    _report(rows, name, mask, out, want, allowed, torch.equal(torch.isinf(lse), torch.isinf(want_lse)))


def _report(
    rows: Rows, case: str, what: str, out: torch.Tensor, want: torch.Tensor, allowed: float, infinities: bool
) -> None:
    error = float((out.double() - want).norm() / want.norm())
    right = error <= allowed and infinities
    rows.add("smoke", case, what, "ok" if right else "WRONG", rel_l2=error, allowed=allowed)


def _filled(step: Step, machine: Machine, first_page: int = 0) -> tuple[PagedKV, torch.Tensor, torch.Tensor]:
    """A poisoned cache in which ``kv_write`` stored the step's tokens, from ``first_page`` on in scattered pages."""
    layout, generator = step.layout, torch.Generator().manual_seed(0)
    needed = [-(-n // layout.page_tokens) for n in step.lengths]
    cache = PagedKV.over(layout, allocate(layout, first_page + sum(needed) + 2, machine.device))
    poison(cache)
    order = (first_page + torch.randperm(sum(needed), generator=generator)).tolist()
    table = torch.full((len(needed), max(needed)), -1, dtype=torch.int32)
    slots: list[int] = []
    for b, (n, count) in enumerate(zip(step.lengths, needed, strict=True)):
        pages, order = order[:count], order[count:]
        table[b, :count] = torch.tensor(pages, dtype=torch.int32)
        slots += [pages[t // layout.page_tokens] * layout.page_tokens + t % layout.page_tokens for t in range(n)]
    shape = (len(slots), layout.kv_heads, layout.head_dim)
    dtype = torch.float32 if layout.precision == "FP32" else machine.dtype
    key, value = (torch.randn(shape, generator=generator).to(dtype).to(machine.device) for _ in range(2))
    kv_write(cache, key, value, torch.tensor(slots, device=machine.device), new_counters(machine.device))
    lengths = torch.tensor(step.lengths, dtype=torch.int32, device=machine.device)
    return cache, table.to(machine.device), lengths


def _rules(mask: str, step: Step, device: torch.device) -> ScoreRules:
    scale, heads = step.layout.head_dim**-0.5, step.attention_heads
    match mask:
        case "window":
            return ScoreRules(scale, window_tokens=step.layout.page_tokens + 1)
        case "softcap":
            return ScoreRules(scale, softcap=30.0)
        case "sinks and ALiBi":
            slopes = torch.logspace(-3, -1, heads, device=device)
            return ScoreRules(scale, alibi_slopes=slopes, sinks=torch.linspace(-2, 2, heads, device=device))
        case _:
            return ScoreRules(scale)


def _variants(machine: Machine, rows: Rows) -> None:
    """The kernels of the ablations attend to the same tokens. Their pages hold finite numbers everywhere."""
    layout = Layout.of("BF16", 8, 128, 64) if machine.timed else Layout.of("FP16", 2, 32, 16)
    step = Step("ablations", (1000, 64, 1) if machine.timed else (40, 3), 4 * layout.kv_heads, layout)
    generator = torch.Generator(machine.device).manual_seed(0)
    (table, *_), pages = tables(step, 1, machine.device, generator)
    storage = allocate(layout, pages, machine.device)
    cache = PagedKV.over(layout, storage)
    fill(cache, generator)
    lens = torch.tensor(step.lengths, dtype=torch.int32, device=machine.device)
    shape = (len(step.lengths), 1, step.attention_heads, layout.head_dim)
    query = torch.randn(shape, generator=generator, device=machine.device).to(machine.dtype)
    want, _ = reference.paged_decode(query, cache, table, lens, ScoreRules(layout.head_dim**-0.5))
    workspace = workspace_for(step, SplitPolicy(step.tiles().tile_tokens, units=5), machine.device)
    plan(workspace, lens)
    for name in VARIANTS:
        out, lse = torch.empty_like(query), torch.empty(shape[:3], device=machine.device)
        variant_call(name, query, cache, storage, table, workspace, step.tiles(), out, lse)()
        _report(rows, step.name, name, out, want, ALLOWED[layout.precision], True)


def _large(machine: Machine, rows: Rows, precision: str) -> None:
    """More than 4 GiB and more than 2³¹ elements, and all live pages at the end."""
    layout = Layout.of(precision, 8, 128, 64)
    first = (9 << 30) // layout.page_bytes if precision == "BF16" else (5 << 30) // layout.page_bytes
    step = Step(f"{precision} > 2^31 elements", (70, 1, 640), 32, layout)
    cache, table, seq_lens = _filled(step, machine, first_page=first)
    query = torch.randn(3, 1, 32, 128, device=machine.device).to(machine.dtype)
    rules = ScoreRules(128**-0.5)
    workspace = workspace_for(step, SplitPolicy(step.tiles().tile_tokens, units=5), machine.device)
    plan(workspace, seq_lens)
    out, _ = paged_decode(query, cache, table, seq_lens, rules, workspace)
    want, _ = reference.paged_decode(query, cache, table, seq_lens, rules)
    _report(rows, step.name, "high pages", out, want, ALLOWED["BF16"], True)


def _stages(machine: Machine, rows: Rows) -> None:
    """Pipelines of any depth give the same numbers, and one of them the same bits 50 times."""
    step = Step("BF16 stages", (1000, 64, 1), 32, Layout.of("BF16", 8, 128, 64))
    cache, table, seq_lens = _filled(step, machine)
    query = torch.randn(3, 1, 32, 128, device=machine.device).to(machine.dtype)
    rules = ScoreRules(128**-0.5)
    want, _ = reference.paged_decode(query, cache, table, seq_lens, rules)
    workspace = workspace_for(step, SplitPolicy(64, units=5), machine.device)
    plan(workspace, seq_lens)
    for stages in (1, 2, 3, 4):
        tiles = Tiles(64, 16, 4, stages)
        out = [paged_decode(query, cache, table, seq_lens, rules, workspace, tiles=tiles)[0] for _ in range(50)]
        _report(rows, step.name, f"{stages} stages", out[0], want, ALLOWED["BF16"], True)
        same = all(torch.equal(each, out[0]) for each in out)
        rows.add("smoke", step.name, f"{stages} stages", "ok" if same else "WRONG", note="50 times the same bits")
