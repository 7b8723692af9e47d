"""Loads the model that the Plan names. Imports torch only when called: HTTP answers long before that is done."""

import os
from pathlib import Path

from kvbudget import contract
from kvbudget.errors import InputError, WeightsError
from kvbudget.plan import Plan
from kvbudget.quantity import format_bytes
from kvbudget_worker.server import Loaded
from kvbudget_worker.tokenizer import Tokenizer


def load_model(plan: Plan, device: str | None) -> Loaded:
    """Weights, page pool and tokenizer. Blocking. Raises WeightsError, ShapeError, UnsupportedError or InputError,
    each with the fix."""
    try:
        return _load(plan, device)
    except OSError as error:
        where = str(error.filename or plan.model.weights_path)
        reason = f"cannot be read ({error.strerror or error}): check the volume and its permissions"
        raise WeightsError(where, reason) from None


def _load(plan: Plan, device: str | None) -> Loaded:
    # Read once, when torch loads its threads' runtime. By default threads spin while they wait for each other, which on
    # processors shared with other pods measured 2 to 8 times slower than sleeping.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from kvbudget_worker.runner import Runner

    tokenizer = Tokenizer.load(Path(plan.model.weights_path))
    try:
        runner = Runner.load(plan, device)
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower():
            raise
        # torch's allocators raise RuntimeError, on the CPU and on a GPU.
        pool = format_bytes((plan.kv.pages + plan.kv.reserved_pages) * plan.kv.page_bytes)
        raise InputError(
            "spec.kvCache.memoryPercent",
            f"weights and a pool of {plan.kv.pages} pages ({pool}) do not fit into this device's memory: lower it, or "
            f"correct spec.memory of GPUClass {plan.gpu.class_name} ({str(error).splitlines()[0]})",
        ) from None
    measured = {
        contract.MEASURED_WEIGHT_BYTES: runner.weight_bytes,
        contract.MEASURED_PAGE_BYTES: runner.page_bytes,
        contract.MEASURED_PAGES: runner.pages,
        contract.MEASURED_FREE_BYTES: runner.free_bytes,
    }
    return Loaded(runner, tokenizer, tuple(dict.fromkeys((*runner.eos_ids, *tokenizer.eos_ids))), measured)
