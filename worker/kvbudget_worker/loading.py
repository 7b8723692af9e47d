"""Loads the model that the Plan names. Imports torch only when called: HTTP answers long before that is done."""

from pathlib import Path

from kvbudget import contract
from kvbudget.errors import InputError
from kvbudget.plan import Plan
from kvbudget_worker.server import Loaded
from kvbudget_worker.tokenizer import Tokenizer


def load_model(plan: Plan, device: str | None) -> Loaded:
    """Weights, page pool and tokenizer. Blocking. Raises WeightsError, ShapeError and InputError with the fix."""
    import torch

    from kvbudget_worker.runner import Runner

    if device is None and plan.gpu.resource_name != "cpu" and not torch.cuda.is_available():
        raise InputError(
            contract.ENV_DEVICE,
            f"the pod holds {plan.gpu.resource_name} but no device is found: check the driver and the container "
            f"runtime of this node, or set {contract.ENV_DEVICE}=cpu to serve on the CPU",
        )
    tokenizer = Tokenizer.load(Path(plan.model.weights_path))
    runner = Runner.load(plan, device)
    measured = {
        contract.MEASURED_WEIGHT_BYTES: runner.weight_bytes,
        contract.MEASURED_PAGE_BYTES: runner.page_bytes,
        contract.MEASURED_PAGES: runner.pages,
        contract.MEASURED_FREE_BYTES: runner.free_bytes,
    }
    return Loaded(runner, tokenizer, tuple(dict.fromkeys((*runner.eos_ids, *tokenizer.eos_ids))), measured)
