"""What launches share: how they start, checks of their tensors, and the arguments that describe a cache.

A compiled kernel is found by its constants, by its options, and by what Triton notes of each argument: the type of a
tensor and whether it begins at a multiple of 16 bytes; of a number, whether it is 1 or a multiple of 16, unless the
kernel says that it is not specialised. So everything that varies between steps, and between models of one head size, is
an argument that is not specialised. ``serving.py`` calls the same launches to compile them ahead of time.
"""

from typing import Any

import torch
import triton

from kvbudget_kernels.arch import arch_here, converts_e4m3, is_nvidia
from kvbudget_kernels.errors import require
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.tune import Tiles, interpreted


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Starts ``programs`` programs. The first argument is a tensor; on the meta device the kernel is only compiled, for
    the target of :func:`kvbudget_kernels.arch.compiling_for`. Products and sums may fuse: Triton's default is going to
    change, and it is a part of the kernel's identity."""
    if arguments[0].is_meta:
        kernel.warmup(*arguments, grid=(programs,), enable_fp_fusion=True, **constants)
    else:
        kernel[(programs,)](*arguments, enable_fp_fusion=True, **constants)


def compile_options(tiles: Tiles) -> dict[str, int]:
    """Options of a kernel with these tiles."""
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    if tiles.registers is not None and is_nvidia(arch_here()):
        options["maxnreg"] = tiles.registers
    return options


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
        "FP8_NATIVE": not interpreted(cache.key.device) and converts_e4m3(arch_here()),
        "MATH": math_dtype(cache),
        "WINDOW": rules.window_tokens or 0,
        "SOFTCAP": float(rules.softcap or 0.0),
        "ALIBI": rules.alibi_slopes is not None,
        "STAGES": tiles.stages,
    }
