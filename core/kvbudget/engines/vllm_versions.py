"""What changed in vLLM from version to version, as one row of constants per range of versions.

Read off logs of the versions named; a constant belongs to a version, a kind of link or a kind of kernel, never to a
model. GiB unless the name says otherwise.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from kvbudget.engines.compressed import Packing
from kvbudget.engines.result import GIB, Band, band, exact, gib

OLDEST: Final = (0, 10)
NEWEST: Final = (0, 33)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmVersion:
    """Constants from version ``since`` on."""

    since: tuple[int, int]
    memory_fraction: float
    """Default of gpu_memory_utilization."""
    bytes_per_logit: float
    """Of the sampler's FP32 copies (activation.sampler_bytes)."""
    other: Band
    """Grows outside the tensor allocator on one device: cuBLAS and kernels' workspaces."""
    other_tensor_parallel: Band
    """The same with tensor-parallel ranks: NCCL's and the custom all-reduce's buffers."""
    graphs_budgeted: bool
    """An estimate of the CUDA graphs is taken off the KV memory."""
    token_line: Literal["groups", "concurrency"]
    """How the log counts tokens: blocks ÷ groups × block size, or concurrency × max_model_len."""
    held_expert_workspace: bool
    """The experts' buffers are held for the life of the process (fused_moe: WorkspaceManager)."""
    batches_in_flight: int
    """Batches whose tokens a window keeps besides itself: two with asynchronous scheduling (max_in_flight_tokens)."""
    packing: Packing
    """How blocks of compressed caches are packed."""


_V0_10: Final = VllmVersion(
    since=(0, 10),
    memory_fraction=0.90,
    bytes_per_logit=35.5,
    other=band(0.05, 0.13, 0.30),
    other_tensor_parallel=band(0.30, 0.54, 2.20),
    graphs_budgeted=False,
    token_line="groups",
    held_expert_workspace=False,
    batches_in_flight=1,
    packing="tuples",
)
"""Sorts with int64 indices and several FP32 copies alive at once; 5 logs of 0.11 on H100 give 4.76, 5.56, 5.64, 5.64
and 7.38 GiB, proportional to the vocabulary."""
_V0_12: Final = replace(_V0_10, since=(0, 12), other=band(0.05, 0.13, 0.46), held_expert_workspace=True)
"""The experts' buffers come from one manager."""
_V0_17: Final = replace(
    _V0_12,
    since=(0, 17),
    bytes_per_logit=12,
    other=band(0.22, 0.25, 0.46),
    other_tensor_parallel=band(2.00, 2.10, 2.25),
)
"""The sampler frees what it has used: FP32 logits, their sorted copy, probabilities. 61 logs of 0.19 on H100."""
_V0_21: Final = replace(
    _V0_17,
    since=(0, 21),
    other=band(0.20, 0.25, 0.50),
    other_tensor_parallel=band(0.50, 2.10, 2.40),
    graphs_budgeted=True,
    token_line="concurrency",
)
"""CUDA graphs are estimated and taken off; the token line becomes concurrency × max_model_len."""
_V0_22: Final = replace(_V0_21, since=(0, 22), memory_fraction=0.92)
_V0_24: Final = replace(_V0_22, since=(0, 24), packing="sizes")
_V0_26: Final = replace(_V0_24, since=(0, 26), batches_in_flight=2)
"""Blocks behind a window are freed once their tokens are processed, not scheduled (vllm#47728)."""
_V0_27: Final = replace(_V0_26, since=(0, 27), packing="groups")
VERSIONS: Final[tuple[VllmVersion, ...]] = (_V0_10, _V0_12, _V0_17, _V0_21, _V0_22, _V0_24, _V0_26, _V0_27)
"""Each row says only what changed from the one before it."""

OTHER_PIPELINE_ONLY: Final = band(0.05, 0.07, 0.30)
"""Pipeline stages without tensor parallelism: point-to-point buffers alone."""
CONTEXT_ONE: Final = band(0.40, 0.51, 0.60)
CONTEXT_MANY: Final = band(1.20, 1.50, 2.07)
"""CUDA context, and with several devices NCCL's channels. They exist before the engine takes its first measurement, so
they lie outside its share."""
ALLOCATOR: Final = exact(gib(0.115))
"""Rounding of the tensor allocator at the peak, positions, masks and block tables of the dummy batch."""


def parse_version(text: str) -> tuple[int, int]:
    """Major and minor version. Raises ValueError where the text begins with none.

    >>> parse_version("0.15.2rc1.dev93"), parse_version("v0.9")
    ((0, 15), (0, 9))
    """
    found = re.match(r"\s*v?(\d+)\.(\d+)", text)
    if found is None:
        raise ValueError(f"{text!r} is no version; write it like 0.19")
    return int(found[1]), int(found[2])


def constants(version: tuple[int, int]) -> VllmVersion:
    """The row of a version; versions newer than the table have its last row, older ones its first."""
    return next((row for row in reversed(VERSIONS) if row.since <= version), VERSIONS[0])


def default_batch(memory_bytes: int, name: str) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs of the API server, by the card (engine/arg_utils.py).

    >>> default_batch(gib(79.19), "H100"), default_batch(gib(79.25), "A100"), default_batch(gib(22), "L4")
    ((8192, 1024), (2048, 256), (2048, 256))
    """
    large = memory_bytes >= 70 * GIB and "a100" not in name.lower() and "gb10" not in name.lower()
    if not large:
        return 2048, 256
    return (16384, 1024) if memory_bytes >= 160 * GIB else (8192, 1024)


def graph_sizes(max_sequences: int) -> int:
    """Batch sizes for which a CUDA graph is captured: 1, 2, 4, every 8 up to 256, every 16 up to 512, and no more than
    twice max_num_seqs.

    >>> graph_sizes(1024), graph_sizes(1)
    (51, 2)
    """
    top = min(2 * max_sequences, 512)
    sizes = [1, 2, 4, *range(8, min(top, 256) + 1, 8), *range(272, top + 1, 16)]
    return sum(size <= top for size in sizes)


def graph_bytes(layers: int, max_sequences: int, *, moe: bool) -> Band:
    """All CUDA graphs: a pool, and pieces for each layer and size; experts have more kernels. Fitted on logs of 0.19,
    between 0.5 and 1.9 GiB; the engine's own estimate is up to twice off in either direction."""
    sizes = graph_sizes(max_sequences)
    expected = 0.25 + (0.011 * layers + (0.5 if moe else 0.0)) * sizes / 51 + 0.15 * min(1, sizes / 51)
    return band(0.5 * expected, expected, 1.3 * expected + 0.3)
