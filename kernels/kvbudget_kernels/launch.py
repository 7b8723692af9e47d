"""What several launches share: checks of their tensors, and the arguments that describe a cache."""

from typing import Any

import torch
import triton

from kvbudget_kernels.errors import require
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.tune import Tiles, interpreted


def math_dtype(cache: PagedKV) -> Any:
    """Triton dtype of the matrix products. e4m3 converts to fp16 natively and to bf16 slowly; INT4 is fp16 by its
    scales. The interpreter's bf16 arithmetic is wrong, so there bf16 pages are computed in fp32."""
    match cache.layout.precision:
        case "FP32":
            return triton.language.float32
        case "FP16" | "FP8E4M3" | "INT4" | "INT8":
            return triton.language.float16
        case _:
            return triton.language.float32 if interpreted(cache.key.device) else triton.language.bfloat16


def converts_e4m3(device: torch.device) -> bool:
    """Whether the device has an instruction for e4m3 (NVIDIA from 8.9 on; AMD's gfx942 has one for another format)."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 9)


def check_query(query: torch.Tensor, cache: PagedKV) -> int:
    """Query heads per KV head of ``query`` [..., attention_heads, head_dim]."""
    layout = cache.layout
    heads, head_dim = query.shape[-2:]
    require(
        head_dim == layout.head_dim and heads % layout.kv_heads == 0 and query.stride(-1) == 1,
        "query",
        f"shape {tuple(query.shape)}, strides {query.stride()} over {layout.kv_heads} KV heads of {layout.head_dim}",
        "give whole groups of heads, contiguous along the head",
    )
    return int(heads // layout.kv_heads)


def check_table(table: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Page ids and lengths: int32, one row per sequence."""
    require(
        table.dtype == torch.int32 and table.ndim == 2 and table.stride(1) == 1,
        "table",
        f"{table.dtype} {tuple(table.shape)}",
        "give int32 [sequences, pages], contiguous in a row",
    )
    require(
        seq_lens.dtype == torch.int32 and seq_lens.shape == table.shape[:1],
        "seq_lens",
        f"{seq_lens.dtype} {tuple(seq_lens.shape)}",
        f"give int32 [{table.shape[0]}]",
    )


def check_tiles(cache: PagedKV, tiles: Tiles) -> None:
    """Token-contiguous V needs tiles that lie within a page; others may span whole pages."""
    page, tile = cache.layout.page_tokens, tiles.tile_tokens
    whole = page % tile == 0 or (tile % page == 0 and not cache.layout.v_transposed)
    require(whole, "tiles", f"tiles of {tile} tokens over pages of {page}", "choose one that divides the page")


def cache_strides(cache: PagedKV) -> tuple[int, ...]:
    """Page, head and row strides of K, V and scales, in elements."""
    scales = (0, 0, 0) if cache.scales is None else cache.scales.stride()[:3]
    return (*cache.key.stride()[:3], *cache.value.stride()[:3], *scales)


def cache_constants(cache: PagedKV, rules: ScoreRules, tiles: Tiles) -> dict[str, Any]:
    """Compile-time arguments of the loop over pages."""
    layout = cache.layout
    width = layout.row_codes
    return {
        "D": layout.head_dim,
        "D_PAD": max(16, triton.next_power_of_2(width)),
        "PAGE": layout.page_tokens,
        "TILE": tiles.tile_tokens,
        "MODE": layout.precision,
        "V_T": layout.v_transposed,
        "FP8_NATIVE": converts_e4m3(cache.key.device),
        "MATH": math_dtype(cache),
        "WINDOW": rules.window_tokens or 0,
        "SOFTCAP": float(rules.softcap or 0.0),
        "ALIBI": rules.alibi_slopes is not None,
        "STAGES": tiles.stages,
    }
