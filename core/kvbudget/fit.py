"""The check that gives the project its name: does one sequence of maxModelLen fit, and if not, what would?"""

from kvbudget.budget import Budget
from kvbudget.errors import Problem
from kvbudget.facts import Facts, length_limit
from kvbudget.quantity import format_bytes
from kvbudget.remedies import Remedy, remedies, sentence

CHECK = "BudgetTooSmall"
_MIB, _GIB = 1024**2, 1024**3
_MIB_BELOW_BYTES = 4 * _GIB


def problem(facts: Facts, *, apply: bool) -> tuple[Problem | None, tuple[Remedy, ...]]:
    """The refusal with its arithmetic and what would fit, or None; and the remedies one by one."""
    budget, gpu_class, wanted = facts.budget, facts.gpu_class, facts.service.spec.max_model_len
    if budget is None or gpu_class is None:
        return None, ()
    tokens = _needed(facts, budget)
    if budget.holds(tokens):
        return None, ()
    found = remedies(facts.service, gpu_class, budget, _goal(facts, budget))
    pages = budget.pages_for(tokens)
    need = (
        f"{tokens} tokens need {pages} page{'' if pages == 1 else 's'} ({format_bytes(pages * budget.worst.page_bytes)}"
    )
    text = f"{need} at {budget.kv_bytes_per_token} B per token); {arithmetic(budget, gpu_class.metadata.name)}."
    path = "spec.gpu.class" if wanted is None else "spec.maxModelLen"
    return Problem(path, text + sentence(found, apply=apply), CHECK), found


def _needed(facts: Facts, budget: Budget) -> int:
    """Tokens of the sequence that must fit: maxModelLen, but no more than the model can do (more is a problem of its
    own); where it is left out, one page."""
    wanted = facts.service.spec.max_model_len
    return _possible(budget.inputs.page_tokens if wanted is None else wanted, budget)


def _goal(facts: Facts, budget: Budget) -> int:
    """Tokens that a remedy makes room for: what must fit, and without a maxModelLen also what the limits ask for."""
    needed = _needed(facts, budget)
    if facts.service.spec.max_model_len is not None:
        return needed
    admission = facts.service.spec.admission
    limits = (admission.max_input_tokens, admission.max_output_tokens, admission.default_output_tokens)
    return _possible(max(needed, *(limit + 1 for limit in limits if limit is not None), 2), budget)


def _possible(tokens: int, budget: Budget) -> int:
    limit = length_limit(budget.inputs.shape)
    return tokens if limit is None else min(tokens, limit)


def arithmetic(budget: Budget, class_name: str) -> str:
    """``class x gives memory × percent − … = KV = pages``, in one unit; the worst rank where there are several."""
    inputs, worst = budget.inputs, budget.worst
    unit, divisor = ("MiB", _MIB) if inputs.memory_bytes < _MIB_BELOW_BYTES else ("GiB", _GIB)

    def number(size: int) -> str:
        return f"{size / divisor:.2f}".replace("-", "−")

    terms = f"weights {number(worst.weight_bytes)} − activations {number(worst.activation_bytes)}"
    if worst.graph_bytes:
        terms += f" − graphs {number(worst.graph_bytes)}"
    terms += f" − runtime {number(worst.runtime_bytes)} = {number(worst.kv_bytes)} {unit}"
    held = f" after {worst.reserved_pages} held back" if worst.reserved_pages else ""
    ranks = inputs.tensor_parallel * inputs.pipeline_parallel
    where = f" on the worst of {ranks} ranks" if ranks > 1 else ""
    return (
        f"class {class_name} gives{where} {number(inputs.memory_bytes)} {unit} × {inputs.memory_percent}% − {terms} "
        f"= {budget.pages} pages{held}"
    )
