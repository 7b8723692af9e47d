"""The same model with its weights stored in another format, as if the checkpoint had been quantised so."""

from dataclasses import replace
from typing import Final

from kvbudget.layers import Architecture, WeightFormat, uniform

FORMATS: Final[dict[str, WeightFormat]] = {
    "BF16": uniform("BF16", 16000),
    "FP16": uniform("FP16", 16000),
    "FP32": uniform("FP32", 32000, table_millibits=32000),
    "FP8": uniform("FP8", 8000),
    "INT8": uniform("INT8", 8000),
    "INT4": uniform("INT4", 4156),
    "NVFP4": uniform("NVFP4", 4500),
}
"""INT4 with an FP16 scale and a 4-bit zero per 128, NVFP4 with an E4M3 scale per 16; tables and norms in 16 bits."""
PLAIN: Final = ("BF16", "FP16", "FP32")


def stored_as(shape: Architecture, name: str) -> Architecture:
    """``shape`` with all matrices of its layers in format ``name``. The checkpoint's own bytes are kept where it is in
    that format already.

    >>> from kvbudget.shapes.config import from_config
    >>> from kvbudget.shapes.table import facts
    >>> from kvbudget.weights import count, stored_bytes
    >>> qwen = from_config(facts("Qwen/Qwen3-8B"))
    >>> [round(stored_bytes(s, count(s)) / 2**30, 1) for s in (qwen, stored_as(qwen, "FP8"), stored_as(qwen, "INT4"))]
    [15.3, 8.8, 5.7]
    """
    if shape.weights.name == name:
        return shape
    dtype = "FP32" if name == "FP32" else "BF16" if shape.dtype == "FP32" else shape.dtype
    return replace(shape, weights=FORMATS[name], weight_bytes=None, dtype=dtype)
