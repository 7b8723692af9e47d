"""What a worker's container asks of its node because of the Plan, whatever ``spec.podTemplate`` says."""

from collections.abc import Mapping

from kvbudget.gpu import CPU_PROCESS_BYTES, CPU_RESOURCE
from kvbudget.plan import Plan


def has_device(plan: Plan) -> bool:
    """Whether the pod holds devices; else its class is plain memory."""
    return plan.gpu.resource_name != CPU_RESOURCE


def own_resources(plan: Plan) -> Mapping[str, str]:
    """Request and limit at once, as quantities: the devices, or the class's memory and the process beside it."""
    if has_device(plan):
        return {plan.gpu.resource_name: str(plan.gpu.count)}
    return {"memory": str(plan.budget.gpu_memory_bytes + CPU_PROCESS_BYTES)}


def host_memory_bytes(plan: Plan) -> int:
    """Host memory that a worker with devices asks for where the user names none, so that its pod is not the first to be
    evicted: the process, and the weights of all ranks, which pass through the page cache while they load.

    The process is taken as :data:`kvbudget.gpu.CPU_PROCESS_BYTES`; what a device's driver keeps in host memory was not
    measured, and has the weights' share once they are loaded.
    """
    return CPU_PROCESS_BYTES + plan.budget.weight_bytes * plan.gpu.count
