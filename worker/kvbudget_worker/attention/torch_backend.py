"""Attention over pages with torch's own operators, on any device.

A step's chunks fall into groups: decodes with about as many pages each form one group, a prefill chunk is one group by
itself. Per layer and group: gather the pages (whole pages, so a gather is a few large copies), turn their codes into
numbers, token-major in the compute dtype, and one ``scaled_dot_product_attention``. The query heads of one KV head are
rows of one product, so K and V are never repeated. What is gathered lives only inside the layer.

Groups bound the waste: pages per sequence within a group differ by less than a factor of 2, and a group gathers at most
``WORKSPACE_BYTES`` (one sequence at least). The workspace is allocated once and grows to its largest use: fresh memory
for every layer would cost more in page faults than the copy into it. A long prefill chunk is computed in tiles of
``TILE_TOKENS`` queries, each over the keys that it may see.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.torch_pages import load, store
from kvbudget_worker.attention.cache import PagedCache
from kvbudget_worker.batch import Chunk

WORKSPACE_BYTES = 16 * 1024**2
TILE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries ``[first, last)`` of a group's sequences against its first ``keys`` tokens. ``mask``: additive,
    broadcast to [sequences, 1, last - first, keys], or None where every key is seen."""

    first: int
    last: int
    keys: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences with ``queries`` tokens each. ``rows``: their tokens' places in the step, or None where these are
    ``start … start + sequences * queries``. ``pages``: their page ids, flat, ``table_pages`` per sequence."""

    sequences: int
    queries: int
    start: int
    rows: torch.Tensor | None
    pages: torch.Tensor
    table_pages: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """``pages``, ``offsets``: [tokens], where each token's K and V go."""

    pages: torch.Tensor
    offsets: torch.Tensor
    groups: tuple[Group, ...]


class TorchAttention:
    """See the module, and :class:`kvbudget_worker.attention.backend.AttentionBackend`."""

    def __init__(self, cache: PagedCache, attention_heads: int, compute_dtype: torch.dtype) -> None:
        self.cache = cache
        self._kv_heads = cache.layout.kv_heads
        self._head_dim = cache.layout.head_dim
        self._group_size = attention_heads // self._kv_heads
        self._dtype = compute_dtype
        self._device = cache.device
        self._token_elements = 2 * self._kv_heads * self._head_dim
        self._gathered = torch.empty(0, dtype=torch.uint8, device=self._device)
        self._token_major = torch.empty(0, dtype=compute_dtype, device=self._device)

    def plan(self, chunks: Sequence[Chunk]) -> StepPlan:
        page_tokens = self.cache.page_tokens
        slots: list[int] = []
        starts: list[int] = []
        for chunk in chunks:
            starts.append(len(slots))
            for position in range(chunk.start, chunk.start + len(chunk.token_ids)):
                page, offset = divmod(position, page_tokens)
                slots.append(chunk.pages[page] * page_tokens + offset)
        tokens = torch.tensor(slots, device=self._device)
        placed = list(zip(starts, chunks, strict=True))
        prefills = [self._prefill(at, c) for at, c in placed if len(c.token_ids) > 1]
        decodes = [self._decodes(g) for g in self._similar((at, c) for at, c in placed if len(c.token_ids) == 1)]
        return StepPlan(tokens // page_tokens, tokens % page_tokens, (*decodes, *prefills))

    def attend(self, layer: int, query: torch.Tensor, key_value: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        pages = self.cache.layers[layer]
        store(pages, key_value, plan.pages, plan.offsets)
        first = plan.groups[0]
        if len(plan.groups) == 1 and first.rows is None:
            return self._attend_group(layer, query, first)
        out = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        for group in plan.groups:
            if group.rows is None:
                end = group.start + group.sequences * group.queries
                out[group.start : end] = self._attend_group(layer, query[group.start : end], group)
            else:
                out.index_copy_(0, group.rows, self._attend_group(layer, query.index_select(0, group.rows), group))
        return out

    def _attend_group(self, layer: int, query: torch.Tensor, group: Group) -> torch.Tensor:
        kv_heads, head_dim = self._kv_heads, self._head_dim
        key, value = self._gather(layer, group)
        if group.queries == 1:
            (tile,) = group.tiles
            folded = query.view(group.sequences, kv_heads, self._group_size, head_dim)
            return self._product(folded, key, value, tile).reshape(group.sequences, -1)
        # One sequence: KV heads take the batch's place, and the heads of a group share K and V by a stride of 0.
        heads = query.view(group.queries, kv_heads, self._group_size, head_dim).permute(1, 2, 0, 3)
        shared = (kv_heads, self._group_size, -1, -1)
        key, value = (x.view(kv_heads, 1, -1, head_dim).expand(shared) for x in (key, value))
        parts = [self._product(heads[:, :, t.first : t.last], key, value, t) for t in group.tiles]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return joined.permute(2, 0, 1, 3).reshape(group.queries, -1)

    def _gather(self, layer: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a group in the workspace, each [sequences, kv_heads, table_pages * page_tokens, head_dim]."""
        layout, pages = self.cache.layout, self.cache.layers[layer]
        b, n, tokens = group.sequences, group.table_pages, self.cache.page_tokens
        taken, elements = b * n * layout.page_bytes, b * n * tokens * self._token_elements
        if self._gathered.numel() < taken:
            self._gathered = self._gathered.new_empty(taken)
            self._token_major = self._token_major.new_empty(elements)
        gathered = self._gathered[:taken].view(b * n, layout.page_bytes)
        torch.index_select(self.cache.storage[layer], 0, group.pages, out=gathered)
        by_token = self._token_major[:elements].view(2, b, self._kv_heads, n, tokens, self._head_dim)
        numbers = load(PagedKV.over(layout, gathered, pages.k_scale, pages.v_scale))
        for side, stored in zip(by_token, numbers, strict=True):
            side.copy_(stored.view(b, n, *stored.shape[1:]).permute(0, 2, 1, 3, 4))
        key, value = by_token.view(2, b, self._kv_heads, n * tokens, self._head_dim).unbind(0)
        return key, value

    @staticmethod
    def _product(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tile: Tile) -> torch.Tensor:
        return scaled_dot_product_attention(
            query, key[:, :, : tile.keys], value[:, :, : tile.keys], attn_mask=tile.mask
        )

    # --- groups ------------------------------------------------------------------------------------------------------

    def _used_pages(self, chunk: Chunk) -> int:
        return -(-(chunk.start + len(chunk.token_ids)) // self.cache.page_tokens)

    def _similar(self, placed: Iterable[tuple[int, Chunk]]) -> Iterator[list[tuple[int, Chunk]]]:
        """Decodes whose page counts have the same bit length, in portions that keep the workspace bounded."""
        by_size = sorted(placed, key=lambda p: self._used_pages(p[1]).bit_length())
        for _, same in groupby(by_size, key=lambda p: self._used_pages(p[1]).bit_length()):
            members = list(same)
            most = max(self._used_pages(c) for _, c in members) * self.cache.page_tokens
            portion = max(1, WORKSPACE_BYTES // (most * self._token_elements * self._dtype.itemsize))
            yield from (members[i : i + portion] for i in range(0, len(members), portion))

    def _decodes(self, members: list[tuple[int, Chunk]]) -> Group:
        used = [self._used_pages(c) for _, c in members]
        width = max(used)
        table: list[int] = []
        for (_, chunk), count in zip(members, used, strict=True):
            table.extend(chunk.pages[:count])
            table.extend([self.cache.scratch_page] * (width - count))
        lengths = [c.start + 1 for _, c in members]
        keys = max(lengths)
        mask = None
        if min(lengths) < keys:
            unseen = torch.arange(keys).unsqueeze(0) >= torch.tensor(lengths).unsqueeze(1)
            mask = self._additive(unseen).view(len(members), 1, 1, keys)
        places = [at for at, _ in members]
        start = places[0]
        contiguous = places == list(range(start, start + len(places)))
        rows = None if contiguous else torch.tensor(places, device=self._device)
        pages = torch.tensor(table, device=self._device)
        return Group(len(members), 1, start, rows, pages, width, (Tile(0, 1, keys, mask),))

    def _prefill(self, start: int, chunk: Chunk) -> Group:
        tokens, used = len(chunk.token_ids), self._used_pages(chunk)
        tiles = []
        for first in range(0, tokens, TILE_TOKENS):
            last = min(first + TILE_TOKENS, tokens)
            keys = chunk.start + last
            positions = torch.arange(chunk.start + first, chunk.start + last).unsqueeze(1)
            mask = self._additive(torch.arange(keys).unsqueeze(0) > positions).view(1, 1, last - first, keys)
            tiles.append(Tile(first, last, keys, mask))
        pages = torch.tensor(chunk.pages[:used], device=self._device)
        return Group(1, tokens, start, None, pages, used, tuple(tiles))

    def _additive(self, unseen: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(unseen.shape, dtype=self._dtype).masked_fill_(unseen, float("-inf"))
        return mask.to(self._device)
