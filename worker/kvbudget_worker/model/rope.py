"""Rotary position encoding, in Hugging Face's order: channel i turns with channel i + head_dim/2.

For position p and pair i the angle is p / theta^(2i/head_dim), with the frequencies stretched for longer contexts by
``linear`` (all by a factor) or ``llama3`` (only those whose wavelength is long against the original context).
"""

import math

import torch

from kvbudget_worker.model.config import Rope


def frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] in fp32, radians per position.

    >>> frequencies(Rope(10_000.0), 4).tolist()
    [1.0, 0.009999999776482582]
    >>> frequencies(Rope(10_000.0, "linear", factor=2.0), 4)[0].item()
    0.5
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    wavelength = 2 * math.pi / plain
    low = rope.original_max_positions / rope.low_freq_factor
    high = rope.original_max_positions / rope.high_freq_factor
    smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - smooth) * plain / rope.factor + smooth * plain
    stretched = torch.where(wavelength > low, plain / rope.factor, plain)
    return torch.where((wavelength <= low) & (wavelength >= high), between, stretched)


class RotaryTable:
    """Cosines and sines of every position up to ``positions``: two look-ups per step instead of 2 * head_dim
    trigonometric functions per token."""

    def __init__(self, rope: Rope, head_dim: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        angles = torch.outer(torch.arange(positions).float(), frequencies(rope, head_dim))
        cos, sin = angles.cos(), angles.sin()
        # The first half of the sines carries the rotation's sign: rotating is then one roll and one multiply-add.
        self._cos = torch.cat((cos, cos), dim=1).to(device=device, dtype=dtype)
        self._sin = torch.cat((-sin, sin), dim=1).to(device=device, dtype=dtype)
        self._half = head_dim // 2

    @property
    def nbytes(self) -> int:
        return self._cos.nbytes + self._sin.nbytes

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), each [tokens, 1, head_dim]."""
        return (
            self._cos.index_select(0, positions).unsqueeze(1),
            self._sin.index_select(0, positions).unsqueeze(1),
        )

    def rotate(self, heads: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """``heads``: [tokens, heads, head_dim] of Q or K; returns a new tensor of that shape."""
        cos, sin = angles
        return torch.addcmul(heads * cos, heads.roll(self._half, -1), sin)
