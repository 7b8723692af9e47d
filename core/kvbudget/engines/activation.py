"""Peaks of an engine's dry run beside the weights, from the model's shape: sampler, prefill, experts, images.

At default settings the sampler over the vocabulary is the peak, not the prefill: the dummy run ends with one row of
logits for each of ``max_sequences`` requests. Meanwhile the residual stream of the batch, the experts' workspace and
the images stay allocated.

Worked for Llama-3.1-8B, 8192 batched tokens, 1024 sequences, 14 bytes a logit (vLLM 0.19 logged 1.89 GiB):

>>> round((1024 * 128256 * 14 + 8192 * 4096 * 2) / 2**30 + 0.115, 2)
1.89
"""

from typing import Final

from kvbudget.layers import Architecture, FeedForward

_PIXEL_BYTES_PER_TOKEN: Final = 28 * 28 * 3 * 4
"""An image token stands for 28 × 28 pixels (patches of 14, merged 2 × 2) of three FP32 channels; the towers of Qwen-VL,
Pixtral, Kimi-VL and Llama 4 agree in it."""
_EXPERT_CHUNK_TOKENS: Final = 16384
"""Most tokens that the fused experts work on at once (vLLM: VLLM_FUSED_MOE_CHUNK_SIZE)."""


def element_bytes(arch: Architecture) -> int:
    """Bytes of a number between two layers."""
    return 4 if arch.dtype == "FP32" else 2


def sampler_bytes(arch: Architecture, *, max_sequences: int, bytes_per_logit: float) -> int:
    """Logits of one row per sequence, gathered in full on each rank, with their copies. ``bytes_per_logit`` are those
    of the FP32 copies, sorts and sums; the logits themselves come on top, in the model's own type."""
    return round(max_sequences * arch.vocab_size * (bytes_per_logit + element_bytes(arch)))


def residual_bytes(arch: Architecture, tokens: int) -> int:
    """A row as wide as the residual stream for each batched token: the hidden states of the dummy batch."""
    return tokens * arch.hidden_size * element_bytes(arch)


def expert_workspace_bytes(arch: Architecture, tokens: int, *, tensor_parallel: int) -> int:
    """The two buffers of the fused experts: ``tokens × experts per token`` rows, one as wide as gate and up, one as
    wide as their product, neither narrower than the residual stream (vLLM: fused_moe/modular_kernel.py).

    Experts in MXFP4 have kernels of their own, which hold no such buffers."""
    if arch.weights.name.startswith("MXFP4"):
        return 0
    rows = min(tokens, _EXPERT_CHUNK_TOKENS) * element_bytes(arch)
    return max((rows * mlp.experts_per_token * _widths(arch, mlp, tensor_parallel) for mlp in _moe(arch)), default=0)


def _widths(arch: Architecture, mlp: FeedForward, tensor_parallel: int) -> int:
    width = -(-mlp.expert_intermediate // tensor_parallel)
    return max(width, arch.hidden_size) + max(2 * width, arch.hidden_size)


def _moe(arch: Architecture) -> list[FeedForward]:
    return [mlp for mlp in arch.feed_forward if mlp.experts]


def prefill_bytes(arch: Architecture, tokens: int, *, tensor_parallel: int) -> int:
    """Peak of one layer over a full batch: gate, up and their product, and four rows of the residual stream."""
    widths = [max(mlp.intermediate, mlp.shared_intermediate) for mlp in arch.feed_forward]
    width = -(-max(widths, default=0) // tensor_parallel)
    return tokens * (3 * width + 4 * arch.hidden_size) * element_bytes(arch)


def image_bytes(arch: Architecture, tokens: int) -> int:
    """What the dry run keeps of its images: pixels, and the encoder's output for a batch full of image tokens."""
    if not arch.is_multimodal:
        return 0
    return tokens * (arch.hidden_size * element_bytes(arch) + _PIXEL_BYTES_PER_TOKEN)


def unpacked_expert_layer_bytes(arch: Architecture, *, tensor_parallel: int) -> int:
    """One layer's experts in 16 bits, their sides rounded up to 256: what unpacking MXFP4 experts needs besides."""
    if not arch.weights.name.startswith("MXFP4"):
        return 0
    side = _up(arch.hidden_size)
    sizes = [m.experts * 3 * side * _up(-(-m.expert_intermediate // tensor_parallel)) * 2 for m in _moe(arch)]
    return max(sizes, default=0)


def _up(width: int, step: int = 256) -> int:
    return -(-width // step) * step
