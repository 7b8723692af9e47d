"""A verdict for people (text) and for programs (JSON): every term of the budget, what fits, and what would."""

from collections.abc import Iterator
from dataclasses import replace

from kvbudget.api import GPUClass, LLMService
from kvbudget.budget import Budget, StageBudget, compute
from kvbudget.checks import Verdict
from kvbudget.errors import Problem
from kvbudget.facts import SERVED_KV, length_limit
from kvbudget.parameters import checkpoint_agrees
from kvbudget.plan import max_model_len, plan_budget
from kvbudget.quantity import format_bytes
from kvbudget.shape import ModelShape

_LABEL_WIDTH = 28


def explain(verdict: Verdict, service: LLMService, gpu_class: GPUClass | None) -> str:
    """The whole verdict as plain text, lines of at most about 120 characters except for messages."""
    return "\n".join(_lines(verdict, service, gpu_class)) + "\n"


def as_json(verdict: Verdict, service: LLMService, gpu_class: GPUClass | None) -> dict[str, object]:
    """The same as JSON-able data, camelCase. ``fits`` says whether there are no errors; ``budget`` is the worst rank's,
    in bytes, and null where none follows; ``plan`` is what the worker would get."""
    budget, plan, sizing = verdict.budget, verdict.plan, verdict.sizing
    return {
        "service": {"namespace": service.metadata.namespace, "name": service.metadata.name},
        "model": service.served_name,
        "gpuClass": service.spec.gpu.class_,
        "fits": not verdict.errors,
        "budget": None if budget is None else _budget_json(service, budget),
        "stages": [] if budget is None else [_stage_json(stage) for stage in budget.stages],
        "precisions": {} if budget is None else _by_precision(budget, gpu_class),
        "limits": None if plan is None else plan.limits.model_dump(by_alias=True),
        "sizing": None
        if sizing is None
        else {"replicas": sizing.replicas, "reason": sizing.reason, "formula": sizing.formula},
        "errors": [_problem_json(p) for p in verdict.errors],
        "warnings": [_problem_json(p) for p in verdict.warnings],
        "notes": [_problem_json(p) for p in verdict.notes],
        "remedies": [
            {"text": r.text, "served": r.served, "changes": [{"path": p, "value": v} for p, v in r.changes]}
            for r in verdict.remedies
        ],
        "plan": None if plan is None else plan.model_dump(by_alias=True),
        "planHash": None if plan is None else plan.hash(),
    }


def _lines(verdict: Verdict, service: LLMService, gpu_class: GPUClass | None) -> Iterator[str]:
    name = "/".join(part for part in (service.metadata.namespace, service.metadata.name) if part)
    yield f"{name}: {service.served_name} on {service.spec.gpu.class_}"
    budget = verdict.budget
    if budget is not None:
        yield f"  {_shape_text(budget.inputs.shape)}"
        yield ""
        yield from _budget_lines(budget)
        yield ""
        precisions = _by_precision(budget, gpu_class)
        if len(precisions) > 1:
            yield "  tokens per replica by KV precision"
            for precision, tokens in precisions.items():
                later = "" if precision in SERVED_KV else "   (planned only, not served yet)"
                yield f"    {precision:<10}{tokens:>12}{later}"
            yield ""
    yield from _outcome_lines(verdict, service)


def _outcome_lines(verdict: Verdict, service: LLMService) -> Iterator[str]:
    plan, sizing = verdict.plan, verdict.sizing
    if verdict.errors:
        yield "DOES NOT FIT" if any(p.check == "BudgetTooSmall" for p in verdict.errors) else "REFUSED"
    elif plan is not None:
        limits, at_once = plan.limits, plan.budget.sequences_at_max_len
        yield f"FITS: maxModelLen {limits.max_model_len}, {_plural(at_once, 'sequence')} of that length at once"
        yield f"  one replica holds {limits.tokens_in_flight} tokens in flight, {_queue_text(limits.queue_tokens)}"
        yield (
            f"  prompts ≤ {limits.max_input_tokens} tokens, outputs ≤ {limits.max_output_tokens} "
            f"({limits.default_output_tokens} where a request names none)"
        )
    if sizing is not None:
        why = {"MinReplicas": "scaling.minReplicas", "Traffic": "from the traffic", "Default": "no traffic given"}
        set_by_user = service.spec.replicas
        count = sizing.replicas if set_by_user is None else set_by_user
        reason = why[sizing.reason] if set_by_user is None else "as set"
        yield f"  {_plural(count, 'replica')} ({reason})"
        if sizing.formula is not None:
            yield f"  traffic: {sizing.formula}"
    for title, problems in (("error", verdict.errors), ("warning", verdict.warnings), ("note", verdict.notes)):
        for problem in problems:
            yield f"  {title}: {problem}"


def _budget_lines(budget: Budget) -> Iterator[str]:
    inputs, worst = budget.inputs, budget.worst
    ranks = inputs.tensor_parallel * inputs.pipeline_parallel
    if ranks > 1:
        which = f", those of stage {worst.stage + 1}, which decides" if inputs.pipeline_parallel > 1 else ""
        yield f"  per GPU of {ranks} in a replica{which}"
    source = "checkpoint" if checkpoint_agrees(inputs.shape, inputs.weight_precision) else "counted from the shape"
    larger = "sampler" if worst.sampler_bytes >= worst.prefill_bytes else "prefill"
    yield _row("memory", inputs.memory_bytes, "as the device reports it")
    yield _row(f"usable = memory × {inputs.memory_percent}%", budget.usable_bytes)
    yield _row("− weights", worst.weight_bytes, f"{inputs.weight_precision}, {source}")
    yield _row(
        "− activations",
        worst.activation_bytes,
        f"{larger}, the larger of sampler {format_bytes(worst.sampler_bytes)} and prefill "
        f"{format_bytes(worst.prefill_bytes)}; decode workspace {format_bytes(worst.split_bytes)}",
    )
    yield _row("− graphs", worst.graph_bytes)
    yield _row("− runtime", worst.runtime_bytes, f"constant of device kind {inputs.device}")
    yield _row("= KV", worst.kv_bytes)
    yield _row(
        "page",
        worst.page_bytes,
        f"{inputs.page_tokens} tokens × {budget.kv_bytes_per_token} B in {inputs.kv_precision}, {worst.layers} layers",
    )
    held = f"after {worst.reserved_pages} held back" if worst.reserved_pages else ""
    yield f"  {'pages':<{_LABEL_WIDTH}}{budget.pages:>16}     {held}".rstrip()
    yield f"  {'tokens = pages × ' + str(inputs.page_tokens):<{_LABEL_WIDTH}}{budget.tokens:>16}"
    yield _row("remainder of KV", worst.remainder_bytes, "less than a page")
    yield _row("headroom", budget.headroom_bytes, "memory − usable")
    if inputs.pipeline_parallel > 1:
        for stage in budget.stages:
            yield (
                f"    stage {stage.stage + 1}: {stage.layers} layers, weights {format_bytes(stage.weight_bytes)}, "
                f"activations {format_bytes(stage.activation_bytes)}, KV {format_bytes(stage.kv_bytes)}, "
                f"{stage.pages} pages"
            )


def _row(label: str, size: int, why: str = "") -> str:
    return f"  {label:<{_LABEL_WIDTH}}{size:>16} B   {format_bytes(size):>11}   {why}".rstrip()


def _shape_text(shape: ModelShape) -> str:
    kind = {shape.attention_heads: "MHA", 1: "MQA"}.get(shape.kv_heads, "GQA")
    limit = length_limit(shape)
    longest = f"{shape.max_position_embeddings} tokens" + ("" if limit else " and more with RoPE scaling")
    return (
        f"{shape.layers} layers, hidden {shape.hidden_size}, {shape.attention_heads} heads of {shape.head_dim}, "
        f"{shape.kv_heads} KV heads ({kind}), vocabulary {shape.vocab_size}, {longest}"
    )


def _by_precision(budget: Budget, gpu_class: GPUClass | None) -> dict[str, int]:
    """Tokens per replica with each KV precision of the class, all else equal, the one in use first."""
    used = budget.inputs.kv_precision
    others = [] if gpu_class is None else [p for p in gpu_class.spec.kv_precisions if p != used]
    return {used: budget.tokens, **{p: compute(replace(budget.inputs, kv_precision=p)).tokens for p in others}}


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _queue_text(tokens: int) -> str:
    return f"and queues {tokens} more" if tokens else "and queues none"


def _budget_json(service: LLMService, budget: Budget) -> dict[str, object]:
    terms = plan_budget(budget, max_model_len(service, budget)).model_dump(by_alias=True)
    return {**terms, "headroomBytes": budget.headroom_bytes}


def _stage_json(stage: StageBudget) -> dict[str, int]:
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "weightBytes": stage.weight_bytes,
        "samplerBytes": stage.sampler_bytes,
        "prefillBytes": stage.prefill_bytes,
        "splitBytes": stage.split_bytes,
        "activationBytes": stage.activation_bytes,
        "graphBytes": stage.graph_bytes,
        "runtimeBytes": stage.runtime_bytes,
        "kvBytes": stage.kv_bytes,
        "pageBytes": stage.page_bytes,
        "pages": stage.pages,
    }


def _problem_json(problem: Problem) -> dict[str, str]:
    return {"path": problem.path, "check": problem.check, "message": problem.message}
