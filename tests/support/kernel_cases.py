"""Caches full of traps, and how close a kernel must come to the reference."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kvbudget_kernels import reference
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout, PagedKV, allocate
from kvbudget_kernels.tune import Tiles, pick

CPU = torch.device("cpu")
REL_L2 = {"FP32": 2e-6, "FP16": 5e-4, "BF16": 5e-6, "FP8E4M3": 5e-4, "INT8": 5e-4, "INT4": 1e-3}
"""Against the reference on the same stored codes; an fp16 output may be as far off as FP16. BF16 pages are computed in
fp32 here. INT4 rounds scale · code and + zero to fp16 one after the other."""
LSE = {"FP32": 1e-5, "FP16": 2e-5, "BF16": 1e-5, "FP8E4M3": 2e-5, "INT8": 2e-5, "INT4": 4e-3}
"""Codes are exact in fp16 and their products are summed in fp32, but for INT4: see above."""
NAN_HALVES = 0x7E007E00
NO_SUCH_PAGE = 10**6
_MAP_NORESERVE = 0x4000  # Linux; mmap has the name from Python 3.13 on


@dataclass(frozen=True)
class Case:
    """A cache of sequences of ``lengths`` tokens whose K and V were ``key[b]``, ``value[b]`` [tokens, heads, head_dim]
    before they were stored, each sequence's pages scattered. ``table``'s tail is −1."""

    cache: PagedKV
    table: torch.Tensor
    seq_lens: torch.Tensor
    key: list[torch.Tensor]
    value: list[torch.Tensor]


def poison(cache: PagedKV) -> None:
    """NaN in every slot, K and V and scales; codes of token-contiguous V are the largest finite ones."""
    match cache.layout.precision:
        case "FP8E4M3":
            cache.key.fill_(0x7F)
            cache.value.fill_(0x7E)
        case "INT8":
            cache.key.fill_(127)
            cache.value.fill_(127)
        case "INT4":
            cache.key.fill_(0xFF)
            cache.value.fill_(0xFF)
        case _:
            cache.key.fill_(float("nan"))
            cache.value.fill_(float("nan"))
    if cache.scales is not None:
        cache.scales.fill_(NAN_HALVES)


def poison_tokens(case: Case, b: int, positions: Sequence[int]) -> None:
    """As :func:`poison`, for single tokens of one sequence."""
    cache, tokens = case.cache, case.cache.layout.page_tokens
    dead = PagedKV(cache.layout, torch.empty_like(cache.key), torch.empty_like(cache.value), _like(cache.scales))
    poison(dead)
    for position in positions:
        page, slot = int(case.table[b, position // tokens]), position % tokens
        cache.key[page, :, slot] = dead.key[page, :, slot]
        if cache.layout.v_transposed:
            cache.value[page, :, :, slot] = dead.value[page, :, :, slot]
        else:
            cache.value[page, :, slot] = dead.value[page, :, slot]
        if cache.scales is not None and dead.scales is not None:
            cache.scales[page, :, slot] = dead.scales[page, :, slot]


def _like(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else torch.empty_like(x)


def far_pages(pages: int, page_bytes: int, element_bytes: int) -> torch.Tensor:
    """Zeroed uint8 [pages, page_bytes], more than 2³⁰ elements from page to page: a stride fits in 32 bits, its product
    with a page id from 2 on does not. Only what is touched takes memory."""
    stride = 2**30 * element_bytes + 4096
    memory = mmap.mmap(-1, pages * stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return torch.frombuffer(memory, dtype=torch.uint8).as_strided((pages, page_bytes), (stride, 1))


def empty_cache(layout: Layout, pages: int, form: str = "plain", seed: int = 0) -> PagedKV:
    """``form``: ``plain``; ``interleaved``, one of three layers whose pages alternate; ``split``, all K pages before
    all V pages (elements only); ``far``, see :func:`far_pages`. Poisoned. FP8E4M3 has different scales for each head,
    and for K and V."""
    generator = torch.Generator().manual_seed(seed + 1)
    k_scale = v_scale = None
    if layout.precision == "FP8E4M3":
        k_scale = torch.rand(layout.kv_heads, generator=generator) * 0.02 + 0.01
        v_scale = torch.rand(layout.kv_heads, generator=generator) * 0.05 + 0.01
    match form:
        case "plain":
            cache = PagedKV.over(layout, allocate(layout, pages, CPU), k_scale, v_scale)
        case "interleaved":
            storage = torch.zeros(pages, 3, layout.page_bytes, dtype=torch.uint8)
            cache = PagedKV.over(layout, storage[:, 1], k_scale, v_scale)
        case "far":
            storage = far_pages(pages, layout.page_bytes, layout.code_dtype.itemsize)
            cache = PagedKV.over(layout, storage, k_scale, v_scale)
        case "split":
            kv = torch.zeros(2, pages, layout.kv_heads, layout.page_tokens, layout.head_dim, dtype=layout.code_dtype)
            cache = PagedKV(layout, kv[0], kv[1])
        case _:
            raise ValueError(form)
    poison(cache)
    return cache


def make_case(
    layout: Layout,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    form: str = "plain",
    input_dtype: torch.dtype = torch.float16,
    spread: float = 1.0,
    spare_pages: int = 3,
) -> Case:
    """Sequences of Gaussian K and V in scattered pages, everything else poisoned. The table is exactly as wide as the
    longest sequence needs and ends where its storage ends."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-n // layout.page_tokens) for n in lengths]
    pages = sum(needed) + spare_pages
    cache = empty_cache(layout, pages, form, seed)
    order = torch.randperm(pages, generator=generator).to(torch.int32)
    table = torch.full((len(lengths), max(1, *needed)), -1, dtype=torch.int32)
    keys, values, at = [], [], 0
    for b, (n, count) in enumerate(zip(lengths, needed, strict=True)):
        table[b, :count] = order[at : at + count]
        at += count
        shape = (n, layout.kv_heads, layout.head_dim)
        key = (torch.randn(shape, generator=generator) * spread).to(input_dtype)
        value = (torch.randn(shape, generator=generator) * spread).to(input_dtype)
        position = torch.arange(n)
        slots = table[b, position // layout.page_tokens].long() * layout.page_tokens + position % layout.page_tokens
        reference.kv_write(cache, key, value, slots)
        keys.append(key)
        values.append(value)
    return Case(cache, table, torch.tensor(list(lengths), dtype=torch.int32), keys, values)


def with_table(case: Case, kind: str) -> Case:
    """``exact``: as it is; ``wide``: cells of −1 behind every row; ``strided``: a view of a wider table, and every cell
    that no page is in names one that does not exist."""
    if kind == "exact":
        return case
    nothing = -1 if kind == "wide" else NO_SUCH_PAGE
    rows, width = case.table.shape
    whole = torch.full((rows, width + 3), nothing, dtype=torch.int32)
    whole[:, :width] = torch.where(case.table < 0, nothing, case.table)
    return replace(case, table=whole if kind == "wide" else whole[:, :width])


def make_query(
    case: Case, heads: int, q_len: int = 1, *, seed: int = 7, dtype: torch.dtype = torch.float16
) -> torch.Tensor:
    """[batch, q_len, heads, head_dim] as a view of a fused qkv tensor: no stride is the natural one."""
    generator = torch.Generator().manual_seed(seed)
    fused = torch.randn(case.seq_lens.shape[0], q_len, heads + 3, case.cache.layout.head_dim, generator=generator)
    return fused.to(dtype)[:, :, 1 : heads + 1]


def make_workspace(
    case: Case, heads: int, q_len: int = 1, *, tiles: Tiles | None = None, units: int = 3, fixed_tiles: int = 0
) -> Workspace:
    """Filled with NaN, and with pieces that would read out of bounds."""
    layout = case.cache.layout
    rows = q_len * heads // layout.kv_heads
    tiles = tiles or pick(layout.precision, layout.head_dim, layout.page_tokens, rows)
    workspace = Workspace.allocate(
        SplitPolicy(tiles.tile_tokens, units, 1, fixed_tiles),
        max_batch=case.seq_lens.shape[0],
        max_tokens=int(case.seq_lens.max()),
        kv_heads=layout.kv_heads,
        rows=rows,
        head_dim=layout.head_dim,
        device=CPU,
    )
    for ints in (workspace.work, workspace.o_indptr, workspace.unit_indptr, workspace.n_work):
        ints.fill_(2**30)
    workspace.part_o.fill_(float("nan"))
    workspace.part_lse.fill_(float("nan"))
    return workspace


def decode(
    case: Case,
    query: torch.Tensor,
    rules: ScoreRules,
    *,
    tiles: Tiles | None = None,
    units: int = 3,
    fixed_tiles: int = 0,
    spaced: bool = False,
    into: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plan, decode and merge. ``into``: out and lse; else they are NaN before, and where they are ``spaced``, views of
    larger tensors without a natural stride."""
    batch, q_len, heads, head_dim = query.shape
    workspace = make_workspace(case, heads, q_len, tiles=tiles, units=units, fixed_tiles=fixed_tiles)
    plan(workspace, case.seq_lens, q_len=q_len, window_tokens=rules.window_tokens)
    if into is None:
        more = (1, 2, 16) if spaced else (0, 0, 0)
        whole = torch.full((batch, q_len + more[0], heads + more[1], head_dim + more[2]), float("nan")).to(query.dtype)
        lses = torch.full((batch, q_len + more[1], heads + 3 * more[0]), float("nan"))
        into = whole[:, :q_len, :heads, :head_dim], lses[:, :q_len, :heads]
    out, lse = into
    return paged_decode(query, case.cache, case.table, case.seq_lens, rules, workspace, tiles=tiles, out=out, lse=lse)


def rel_l2(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm().clamp(min=1e-30))


def assert_close(
    got: tuple[torch.Tensor, torch.Tensor], want: tuple[torch.Tensor, torch.Tensor], precision: str
) -> None:
    """Out by its relative L2 norm (of each sequence or token, the first dimension, twice as much is allowed: a short
    one's large numbers must not hide a long one's error) and its largest difference (8 times the root mean square that
    the norm allows), lse by its largest difference. Nothing is NaN, and −inf is −inf."""
    (out, lse), (want_out, want_lse) = got, want
    assert torch.isfinite(want_out).all(), "the reference reads what nobody sees"
    assert torch.isfinite(out).all(), "out is not finite"
    assert torch.equal(torch.isinf(lse), torch.isinf(want_lse)), "−inf at other places"
    bound = REL_L2[precision]
    if out.dtype == torch.float16:
        bound = max(bound, REL_L2["FP16"])
    off, inner = (out.double() - want_out).abs(), tuple(range(1, out.ndim))
    rms = want_out.pow(2).mean(inner, keepdim=True).sqrt()
    each = float((off.pow(2).mean(inner, keepdim=True).sqrt() / rms.clamp(min=1e-30)).max())
    error = rel_l2(out, want_out)
    assert error <= bound, f"{error:.1e} is above {bound}"
    assert each <= 2 * bound, f"{each:.1e} is above twice {bound}"
    assert bool((off <= 8 * bound * rms.maximum(want_out.pow(2).mean(-1, keepdim=True).sqrt())).all()), "one element"
    live = torch.isfinite(want_lse)
    if live.any():
        assert float((lse.double() - want_lse)[live].abs().max()) <= LSE[precision]


def check_decode(
    case: Case,
    query: torch.Tensor,
    rules: ScoreRules,
    *,
    tiles: Tiles | None = None,
    units: int = 3,
    fixed_tiles: int = 0,
    spaced: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's result, compared with the reference on the same pages."""
    got = decode(case, query, rules, tiles=tiles, units=units, fixed_tiles=fixed_tiles, spaced=spaced)
    want = reference.paged_decode(query, case.cache, case.table, case.seq_lens, rules)
    assert_close(got, want, case.cache.layout.precision)
    return got
