"""Decode with shared prefixes: each prefix is read once for all sequences that share it."""

from dataclasses import dataclass

import torch
import triton

from kvbudget_kernels.device.cascade import prefix_kernel
from kvbudget_kernels.errors import require
from kvbudget_kernels.launch import (
    cache_constants,
    cache_strides,
    check_query,
    check_table,
    check_tiles,
    compile_options,
    launch,
)
from kvbudget_kernels.merge import merge_many
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.plan import Workspace, plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.tune import pick, row_tile


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """``table``: int32 [groups, pages], the pages of each shared prefix; ``lens``: int32 [groups], its tokens. Group
    g's members are the sequences ``members[indptr[g] : indptr[g+1]]`` (int32); ``most_members`` bounds a group's size.
    A sequence is in one group at most."""

    table: torch.Tensor
    lens: torch.Tensor
    indptr: torch.Tensor
    members: torch.Tensor
    most_members: int


def cascade_decode(
    query: torch.Tensor,
    cache: PagedKV,
    groups: PrefixGroups,
    suffix_table: torch.Tensor,
    suffix_lens: torch.Tensor,
    rules: ScoreRules,
    workspace: Workspace,
    *,
    splits: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kvbudget_kernels.paged_decode.paged_decode` over prefix and suffix in one table. ``query``: [batch,
    q_len, attention_heads, head_dim]. ``suffix_table``, ``suffix_lens``: what each sequence has behind its prefix (all
    of it, without a group), a multiple of nothing: a prefix may end anywhere. ``workspace`` is planned here.
    ``splits``: programs along a prefix, for groups of few rows.

    Returns out (query's dtype) and lse fp32, sinks included once. Source: FlashInfer's cascade attention.
    """
    group_size = check_query(query, cache)
    check_table(groups.table, groups.lens)
    batch, q_len, heads, head_dim = query.shape
    layout = cache.layout
    require(splits >= 1, "splits", f"{splits}", "give at least 1")
    no_sinks = ScoreRules(rules.sm_scale, rules.window_tokens, rules.softcap, rules.alibi_slopes)
    plan(workspace, suffix_lens, q_len=q_len, window_tokens=rules.window_tokens)
    suffix = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    suffix, suffix_lse = paged_decode(query, cache, suffix_table, suffix_lens, no_sinks, workspace, out=suffix)
    rows = groups.most_members * q_len * group_size
    tiles = pick(layout.precision, head_dim, layout.page_tokens, rows)
    check_tiles(cache, tiles)
    part_o = torch.empty((splits, *query.shape), dtype=torch.float32, device=query.device)
    part_lse = torch.full((splits, batch, q_len, heads), float("-inf"), device=query.device)
    blocks = triton.cdiv(rows, row_tile(rows))
    launch(
        prefix_kernel,
        groups.lens.shape[0] * splits * blocks * layout.kv_heads,
        query,
        cache.key,
        cache.value,
        cache.scales if cache.scales is not None else groups.members,
        cache.k_scale,
        cache.v_scale,
        groups.table,
        groups.lens,
        groups.indptr,
        groups.members,
        suffix_lens,
        rules.alibi_slopes,
        part_o,
        part_lse,
        rules.sm_scale,
        layout.kv_heads,
        q_len,
        splits,
        blocks,
        batch,
        groups.table.stride(0),
        *query.stride()[:3],
        *cache_strides(cache),
        G=group_size,
        R=row_tile(rows),
        **cache_constants(cache, rules, tiles),
        **compile_options(tiles),
    )
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    return merge_many((suffix, suffix_lse), (part_o, part_lse), sinks=rules.sinks, out=out)
