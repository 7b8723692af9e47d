"""Decode steps to check and to time: caches, tables, lengths, and a call that a graph can record."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from gpu.variants import variant_call
from kvbudget.layout import element_bits
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout, PagedKV, allocate
from kvbudget_kernels.tune import Tiles, pick


@dataclass(frozen=True)
class Machine:
    """``dtype``: of queries. ``peak``, ``read_ceiling``: bytes/s, of the datasheet and measured; None: nothing is
    timed."""

    device: torch.device
    dtype: torch.dtype
    sms: int
    peak: float | None = None
    read_ceiling: float | None = None

    @property
    def timed(self) -> bool:
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Step:
    """One decode step's shape. ``lengths``: tokens of each sequence, the new one included."""

    name: str
    lengths: tuple[int, ...]
    attention_heads: int
    layout: Layout

    @property
    def group(self) -> int:
        return self.attention_heads // self.layout.kv_heads

    @property
    def live_bytes(self) -> int:
        """K, V and scales of live tokens, and nothing else: what has to be read."""
        layout = self.layout
        row = 2 * layout.head_dim * element_bits(layout.precision) // 8 + 4 * layout.scale_words
        return sum(self.lengths) * layout.kv_heads * row

    def tiles(self) -> Tiles:
        return pick(self.layout.precision, self.layout.head_dim, self.layout.page_tokens, self.group)

    def policy(self, sms: int, tiles: Tiles | None = None, ctas_per_sm: int = 4) -> SplitPolicy:
        return SplitPolicy.balanced(
            tile_tokens=(tiles or self.tiles()).tile_tokens, kv_heads=self.layout.kv_heads, group=self.group,
            element_bytes=element_bits(self.layout.precision) / 8, sms=sms, ctas_per_sm=ctas_per_sm,
        )  # fmt: skip


def fill(cache: PagedKV, generator: torch.Generator) -> None:
    """Finite codes and scales everywhere, at the speed of the memory: for timing, where values do not matter."""
    for codes in (cache.key, cache.value):
        if codes.is_floating_point():
            codes.normal_(generator=generator)
        else:
            codes.random_(0, 0x70, generator=generator)
    if cache.scales is not None:
        small, below = (int(torch.tensor(x, dtype=torch.float16).view(torch.int16)) & 0xFFFF for x in (0.02, -0.1))
        high = small if cache.layout.precision == "INT8" else below
        cache.scales.fill_((high << 16 | small) - (1 << 32 if high & 0x8000 else 0))


def tables(step: Step, sets: int, device: torch.device, generator: torch.Generator) -> tuple[list[torch.Tensor], int]:
    """``sets`` tables whose pages are scattered and disjoint, and how many pages they take together."""
    needed = [-(-n // step.layout.page_tokens) for n in step.lengths]
    pages = sum(needed) * sets
    order = torch.randperm(pages, generator=generator, device=device).to(torch.int32)
    made, at = [], 0
    for _ in range(sets):
        table = torch.full((len(needed), max(needed)), -1, dtype=torch.int32, device=device)
        for b, count in enumerate(needed):
            table[b, :count] = order[at : at + count]
            at += count
        made.append(table)
    return made, pages


def calls(
    step: Step, machine: Machine, *, sets: int, tiles: Tiles | None = None, ctas_per_sm: int = 4, variant: str = ""
) -> list[Callable[[], object]]:
    """One call per set of pages: plan, decode and merge of the step. Each keeps its own workspace and output.
    ``variant``: a name in :mod:`gpu.variants`, instead of the served kernel."""
    generator = torch.Generator(machine.device).manual_seed(0)
    given, pages = tables(step, sets, machine.device, generator)
    storage = allocate(step.layout, pages, machine.device)
    cache = PagedKV.over(step.layout, storage)
    fill(cache, generator)
    seq_lens = torch.tensor(step.lengths, dtype=torch.int32, device=machine.device)
    shape = (len(step.lengths), 1, step.attention_heads, step.layout.head_dim)
    query = torch.randn(shape, generator=generator, device=machine.device).to(machine.dtype)
    tiles = tiles or step.tiles()
    policy = step.policy(machine.sms, tiles, ctas_per_sm)
    return [_call(step, cache, storage, table, seq_lens, query, policy, tiles, variant) for table in given]


def _call(
    step: Step, cache: PagedKV, storage: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor, query: torch.Tensor,
    policy: SplitPolicy, tiles: Tiles, variant: str,
) -> Callable[[], object]:  # fmt: skip
    workspace = workspace_for(step, policy, query.device)
    out, lse = torch.empty_like(query), torch.empty(query.shape[:3], device=query.device)
    rules = ScoreRules(step.layout.head_dim**-0.5)
    if variant:
        other = variant_call(variant, query, cache, storage, table, workspace, tiles, out, lse)

        def call_variant() -> object:
            plan(workspace, seq_lens)
            return other()

        return call_variant

    def call() -> object:
        plan(workspace, seq_lens)
        return paged_decode(query, cache, table, seq_lens, rules, workspace, tiles=tiles, out=out, lse=lse)

    return call


def workspace_for(step: Step, policy: SplitPolicy, device: torch.device, q_len: int = 1) -> Workspace:
    return Workspace.allocate(
        policy, max_batch=len(step.lengths), max_tokens=max(step.lengths), kv_heads=step.layout.kv_heads,
        rows=q_len * step.group, head_dim=step.layout.head_dim, device=device,
    )  # fmt: skip


def token_major(layout: Layout) -> Layout:
    """The same page with V as K lies, for 8 and 4 bits: to decide about the page format."""
    return replace(layout, v_transposed=False)
