"""The list of the worker's metrics, and their names."""

from kvbudget import contract
from kvbudget.contract import WORKER_METRICS, Metric

VLLMS_OWN = {contract.ITERATION_TOKENS}
"""A histogram whose name ends as a counter's: vLLM has it so."""


def test_every_metric_of_the_contract_is_in_the_list_once() -> None:
    named = [each for each in vars(contract).values() if isinstance(each, Metric)]
    assert list(WORKER_METRICS) == named
    assert len({each.name for each in named}) == len(named)


def test_only_counters_are_named_a_total() -> None:
    for metric in set(WORKER_METRICS) - VLLMS_OWN:
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name
        assert ":" not in metric.name.removeprefix("vllm:")
