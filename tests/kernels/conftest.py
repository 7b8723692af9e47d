"""These tests run the kernels in Triton's interpreter, which is chosen when Triton is imported.

So they are a process of their own (`pytest tests/kernels`), and the variable is gone again before the first test: what
a test starts shall see the environment as it was.
"""

import importlib
import os
import pkgutil
import sys

import pytest
import torch

if "triton" in sys.modules:
    pytest.exit("tests/kernels needs a process of its own: Triton was already imported, without its interpreter", 2)
os.environ["TRITON_INTERPRET"] = "1"
import triton.experimental.gluon  # noqa: F401 (else the first launch imports it, without the variable)

from kvbudget_kernels import device
from support import bf16_canary, checked_memory, fast_interpreter  # noqa: F401 (the canary's kernel)

for module in pkgutil.iter_modules(device.__path__):
    importlib.import_module(f"{device.__name__}.{module.name}")
fast_interpreter.install()
checked_memory.install()
del os.environ["TRITON_INTERPRET"]
torch.set_num_threads(1)
