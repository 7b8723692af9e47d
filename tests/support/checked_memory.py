"""Refuses what Triton's interpreter does without a word: reading or writing where no argument of the launch lies.

Every load, store and atomic must lie in the extent of one tensor argument, from its first to its last element. On a GPU
such an access is somebody else's memory, or a fault. Here it ends the test and not the process.
"""

from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses from the first element to behind the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def install() -> None:
    """For this process, once."""
    native: Any = interpreter._interpreter
    executor: Any = interpreter.GridExecutor
    extents: list[tuple[int, int]] = []
    begin_launch = executor._init_args_hst
    load, store, atomic = native.load, native.store, native.atomic_rmw

    def launched(self: Any, args: Any, kwargs: Any) -> Any:
        here = begin_launch(self, args, kwargs)
        tensors = [each for each in (*here[0], *here[1].values()) if isinstance(each, torch.Tensor) and each.numel()]
        extents[:] = [_extent(tensor) for tensor in tensors]
        return here

    def check(what: str, pointers: Any, mask: Any, item_bytes: int) -> None:
        reached = pointers if mask.all() else pointers[mask.astype(bool)]
        if not reached.size:
            return
        low, high = int(reached.min()), int(reached.max()) + item_bytes
        if not any(begin <= low and high <= end for begin, end in extents):
            raise IndexError(f"a {what} leaves the launch's tensors")

    def checked_load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        check("load", pointers, mask, np.dtype(dtype).itemsize)
        return load(pointers, mask, other, dtype)

    def checked_store(pointers: Any, value: Any, mask: Any) -> Any:
        check("store", pointers, mask, value.dtype.itemsize)
        return store(pointers, value, mask)

    def checked_atomic(operation: Any, pointers: Any, value: Any, mask: Any, order: Any) -> Any:
        check("atomic", pointers, mask, value.dtype.itemsize)
        return atomic(operation, pointers, value, mask, order)

    executor._init_args_hst = launched
    native.load, native.store, native.atomic_rmw = checked_load, checked_store, checked_atomic
