"""Attention over pages with our Triton kernels: one write per layer, one launch for all decodes and one for all prefill
chunks of the step. Prefill chunks of any length share a launch; the plan of the decodes is made on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvbudget.layout import element_bits
from kvbudget_kernels.kv_write import kv_write, new_counters
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.paged_extend import paged_extend
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.tune import pick
from kvbudget_worker.attention.cache import PagedCache
from kvbudget_worker.batch import Chunk

_SMS_OF_THE_INTERPRETER = 1


@dataclass(frozen=True, slots=True)
class Sequences:
    """Some chunks of a step. ``rows``: int64, their tokens' places in it. ``table``: int32 [sequences, pages], −1
    behind a sequence's pages; ``lens``: int32 [sequences], tokens with the chunk's; ``cu_q``: int32 [sequences + 1]."""

    rows: torch.Tensor
    table: torch.Tensor
    lens: torch.Tensor
    cu_q: torch.Tensor


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """``slots``: int64 [tokens] of the step. ``workspace`` holds the plan of the decodes."""

    slots: torch.Tensor
    decodes: Sequences | None
    prefills: Sequences | None
    workspace: Workspace | None


class TritonAttention:
    """See the module, and :class:`kvbudget_worker.attention.backend.AttentionBackend`. A plan is good until the next
    one: both live in the same workspace."""

    def __init__(self, cache: PagedCache, attention_heads: int) -> None:
        layout = cache.layout
        self.cache = cache
        self._layout = layout
        self._device = cache.device
        self._group = attention_heads // layout.kv_heads
        self._rules = ScoreRules(sm_scale=layout.head_dim**-0.5)
        self._counters = new_counters(self._device)
        self._tiles = pick(layout.precision, layout.head_dim, layout.page_tokens, self._group)
        sms = _SMS_OF_THE_INTERPRETER
        if self._device.type == "cuda":
            sms = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._policy = SplitPolicy.balanced(
            tile_tokens=self._tiles.tile_tokens,
            kv_heads=layout.kv_heads,
            group=self._group,
            element_bytes=element_bits(layout.precision) / 8,
            sms=sms,
        )
        self._workspace: Workspace | None = None

    @property
    def nonfinite_values(self) -> int:
        """Numbers of K and V so far that were not finite and were replaced. Waits for the device."""
        return int(self._counters[0])

    def plan(self, chunks: Sequence[Chunk]) -> TritonPlan:
        page_tokens = self.cache.page_tokens
        slots: list[int] = []
        placed: list[tuple[int, Chunk]] = []
        for chunk in chunks:
            placed.append((len(slots), chunk))
            slots.extend(
                chunk.pages[position // page_tokens] * page_tokens + position % page_tokens
                for position in range(chunk.start, chunk.start + len(chunk.token_ids))
            )
        decodes = self._sequences([each for each in placed if len(each[1].token_ids) == 1])
        prefills = self._sequences([each for each in placed if len(each[1].token_ids) > 1])
        workspace = None
        if decodes is not None:
            workspace = self._workspace_for(decodes.lens.shape[0])
            plan(workspace, decodes.lens)
        return TritonPlan(self._tensor(slots, torch.int64), decodes, prefills, workspace)

    def attend(self, layer: int, query: torch.Tensor, key_value: torch.Tensor, plan: TritonPlan) -> torch.Tensor:
        pages = self.cache.layers[layer]
        kv_write(pages, key_value[:, 0], key_value[:, 1], plan.slots, self._counters)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if (some := plan.decodes) is not None and plan.workspace is not None:
            rows = query.index_select(0, some.rows).unsqueeze(1)
            mixed, _ = paged_decode(rows, pages, some.table, some.lens, self._rules, plan.workspace, tiles=self._tiles)
            out.index_copy_(0, some.rows, mixed.squeeze(1))
        if (some := plan.prefills) is not None:
            rows = query.index_select(0, some.rows)
            mixed, _ = paged_extend(rows, some.cu_q, pages, some.table, some.lens, self._rules)
            out.index_copy_(0, some.rows, mixed)
        return out.flatten(1)

    def _sequences(self, placed: Sequence[tuple[int, Chunk]]) -> Sequences | None:
        if not placed:
            return None
        rows: list[int] = []
        lens: list[int] = []
        cu_q = [0]
        for at, chunk in placed:
            count = len(chunk.token_ids)
            rows.extend(range(at, at + count))
            lens.append(chunk.start + count)
            cu_q.append(len(rows))
        used = [-(-n // self.cache.page_tokens) for n in lens]
        width = max(used)
        table = [[*chunk.pages[:n], *([-1] * (width - n))] for (_, chunk), n in zip(placed, used, strict=True)]
        return Sequences(
            self._tensor(rows, torch.int64),
            self._tensor(table, torch.int32),
            self._tensor(lens, torch.int32),
            self._tensor(cu_q, torch.int32),
        )

    def _workspace_for(self, batch: int) -> Workspace:
        """The one workspace, made anew when a step has more decodes than any before."""
        if self._workspace is None or self._workspace.max_batch < batch:
            self._workspace = Workspace.allocate(
                self._policy,
                max_batch=1 << (batch - 1).bit_length(),
                max_tokens=self.cache.pages * self.cache.page_tokens,
                kv_heads=self._layout.kv_heads,
                rows=self._group,
                head_dim=self._layout.head_dim,
                device=self._device,
            )
        return self._workspace

    def _tensor(self, values: Sequence[object], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
