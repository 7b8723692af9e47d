"""The status of an LLMService from what was decided and observed. Pure. Written only where it differs from the last.

Ready = Accepted ∧ Budgeted ∧ Available. An absent condition is Unknown: MetricsAvailable and BudgetMatchesEngine are
absent while no worker has been asked, ScalingActive while the service does not scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvbudget import conditions
from kvbudget.api import Condition, DecisionStatus, LLMServiceStatus
from kvbudget.api.status import BudgetStatus, DemandStatus, LimitsStatus
from kvbudget.plan import Plan
from kvbudget.quantity import format_bytes
from kvbudget_operator import names
from kvbudget_operator.gather import Snapshot
from kvbudget_operator.observe import Observation, is_driver
from kvbudget_operator.pods import Trouble, is_leaving, is_ready, trouble
from kvbudget_operator.reconcile import Actions

DECISIONS = 5
_TOLD: Mapping[tuple[str, str], Literal["Normal", "Warning"]] = {
    ("Accepted", "False"): "Warning",
    ("BudgetMatchesEngine", "False"): "Warning",
    ("Ready", "True"): "Normal",
    ("Ready", "False"): "Warning",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the Actions: ``writes`` children applied, or ``failure`` (reason and message)."""

    writes: int = 0
    failure: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event to be posted about the service."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def build(
    snapshot: Snapshot,
    actions: Actions,
    outcome: Outcome,
    observation: Observation | None,
    demand: DemandStatus | None,
    decisions: Sequence[DecisionStatus],
    now: str,
) -> LLMServiceStatus:
    """The whole status. ``observation`` None: the workers were not asked yet since we started, what the last status
    says of them stays. ``now``: RFC 3339, for transitions."""
    old = snapshot.status
    live = (snapshot.deployment or {}).get("status") or {}
    plan = actions.plan
    name = snapshot.service["metadata"]["name"]
    current = _conditions(snapshot, actions, outcome, observation, old.conditions)
    return LLMServiceStatus(
        observed_generation=snapshot.service["metadata"]["generation"],
        model=_model(actions),
        replicas=live.get("replicas", 0),
        ready_replicas=live.get("readyReplicas", 0),
        selector=names.selector_text(name),
        budget=BudgetStatus(**plan.budget.model_dump()) if plan else None,
        limits=_limits(plan) if plan else None,
        measured=observation.measured if observation else old.measured,
        demand=demand,
        decisions=list(decisions)[:DECISIONS],
        conditions=list(conditions.merge(old.conditions, current, now)),
    )


def body(snapshot: Snapshot, status: LLMServiceStatus) -> dict[str, Any]:
    """What server-side apply of ``/status`` takes; the uid keeps it off a later object of the same name."""
    metadata = {key: snapshot.service["metadata"][key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": snapshot.service["apiVersion"],
        "kind": snapshot.service["kind"],
        "metadata": metadata,
        "status": status.model_dump(by_alias=True, exclude_none=True),
    }


def notices(old: LLMServiceStatus, new: LLMServiceStatus) -> tuple[Notice, ...]:
    """Events for the transitions that somebody may want to be told about; not that a new service is down."""
    found: list[Notice] = []
    for after in new.conditions:
        before = conditions.find(old.conditions, after.type)
        if (after.type, after.status) not in _TOLD or (before is not None and before.status == after.status):
            continue
        if before is None and (after.type, after.status) == ("Ready", "False"):
            continue
        found.append(Notice(_TOLD[after.type, after.status], after.reason, after.message))
    return tuple(found)


def _model(actions: Actions) -> str | None:
    """What the workers serve, else what is asked for; None where neither can be read."""
    if actions.plan is not None:
        return actions.plan.model.name
    return None if actions.service is None else actions.service.served_name


def _limits(plan: Plan) -> LimitsStatus:
    limits = plan.limits
    return LimitsStatus(
        max_model_len=limits.max_model_len,
        max_input_tokens=limits.max_input_tokens,
        max_output_tokens=limits.max_output_tokens,
        tokens_in_flight=limits.tokens_in_flight,
        queue_tokens=limits.queue_tokens,
    )


def _conditions(
    snapshot: Snapshot,
    actions: Actions,
    outcome: Outcome,
    observation: Observation | None,
    old: Sequence[Condition],
) -> list[Condition]:
    generation = snapshot.service["metadata"]["generation"]

    def condition(kind: str, status: bool, reason: str, message: str) -> Condition:
        text: Literal["True", "False"] = "True" if status else "False"
        return Condition(type=kind, status=text, reason=reason, message=message, observed_generation=generation)

    accepted = condition("Accepted", *_accepted(actions))
    budgeted = condition("Budgeted", *_budgeted(actions))
    available = condition("Available", *_available(snapshot, actions))
    progressing = condition("Progressing", *_progressing(snapshot, actions, outcome))
    observed = _observed(actions, observation)
    if observation is None:
        asked = [each for each in old if each.type in ("BudgetMatchesEngine", "MetricsAvailable", "ScalingActive")]
        measured = [each.model_copy(update={"observed_generation": generation}) for each in asked]
    else:
        measured = [condition(kind, *state) for kind, state in observed]
    mismatch = next((each for each in measured if each.type == "BudgetMatchesEngine" and each.status == "False"), None)
    degraded = condition("Degraded", *_degraded(snapshot, actions, outcome, mismatch))
    failing = next((each for each in (accepted, budgeted, available) if each.status != "True"), None)
    if failing is None:
        ready = condition("Ready", True, available.reason, available.message)
    else:
        ready = condition("Ready", False, failing.reason, failing.message)
    return [accepted, budgeted, *measured, progressing, available, degraded, ready]


_State = tuple[bool, str, str]
"""Status, reason and message of a condition."""


def _accepted(actions: Actions) -> _State:
    message = "\n".join(str(problem) for problem in actions.problems)
    if actions.accepted:
        return True, "Accepted", "\n".join(filter(None, ("the spec fits its class", message)))
    return False, actions.problems[0].check, message


def _budgeted(actions: Actions) -> _State:
    plan = actions.plan
    if plan is None:
        return False, "NoPlan", "no plan: the spec was never accepted, or its last plan is unreadable"
    message = (
        f"{plan.budget.tokens} KV tokens per replica: {plan.budget.pages} pages of {plan.kv.page_tokens} tokens, "
        f"{format_bytes(plan.budget.kv_bytes)} in {plan.kv.precision}; plan {plan.hash()}"
    )
    return True, "Budgeted" if actions.accepted else "LastAcceptedPlan", message


def _available(snapshot: Snapshot, actions: Actions) -> _State:
    ready = ((snapshot.deployment or {}).get("status") or {}).get("readyReplicas", 0)
    if ready:
        return True, "WorkersReady", f"{ready} of {actions.replicas} workers ready"
    if actions.replicas == 0 and snapshot.deployment is not None:
        return True, "ScaledToZero", "no worker wanted"
    return False, "NoReadyWorkers", f"0 of {actions.replicas} workers ready{_why(snapshot, full=True)}"


def _troubles(snapshot: Snapshot) -> list[tuple[str, Trouble | None]]:
    """Each pod that is to become ready and is not, by name, and what is known of why."""
    pods = [pod for pod in snapshot.pods if not is_leaving(pod) and not is_ready(pod)]
    return sorted(((str(pod["metadata"]["name"]), trouble(pod)) for pod in pods), key=lambda found: found[0])


def _why(snapshot: Snapshot, *, full: bool) -> str:
    """The first trouble; its detail may be long, and stands where ``full``: in Available and Ready."""
    for name, found in _troubles(snapshot):
        if found:
            return f"; pod {name}: {found if full else found.reason}"
    return ""


def _progressing(snapshot: Snapshot, actions: Actions, outcome: Outcome) -> _State:
    if outcome.failure:
        return False, *outcome.failure
    deployment = snapshot.deployment
    if deployment is None:
        if actions.accepted:
            return True, "Creating", "the Deployment is being made"
        return False, "NotAccepted", "nothing is made before the spec is accepted"
    live = deployment.get("status") or {}
    updated, ready, total = (live.get(key, 0) for key in ("updatedReplicas", "readyReplicas", "replicas"))
    is_current = live.get("observedGeneration", 0) >= deployment["metadata"]["generation"] and not outcome.writes
    if is_current and updated == ready == total == actions.replicas:
        return False, "Stable", f"{ready} of {actions.replicas} workers ready on plan {snapshot.plan_hash}"
    message = (
        f"{ready} of {actions.replicas} workers ready, {updated} on the latest revision{_why(snapshot, full=False)}"
    )
    if is_current and _deadline_passed(live):
        return False, "ProgressDeadlineExceeded", message
    return True, "RollingOut", message


def _deadline_passed(deployment_status: dict[str, Any]) -> bool:
    return any(
        each["type"] == "Progressing" and each.get("reason") == "ProgressDeadlineExceeded"
        for each in deployment_status.get("conditions") or ()
    )


def _observed(actions: Actions, observation: Observation | None) -> list[tuple[str, _State]]:
    if observation is None:
        return []
    found: list[tuple[str, _State]] = []
    if observation.measured is not None:
        matches: _State = (True, "Measured", "pages and weights are as planned on every worker")
        differs: _State = (False, "BudgetMismatch", observation.mismatch)
        found.append(("BudgetMatchesEngine", differs if observation.mismatch else matches))
    blind: _State = (False, "NoMetrics", observation.message)
    if observation.ready_workers:
        answered: _State = (True, "Scraped", "every ready worker answers")
        found.append(("MetricsAvailable", answered if observation.has_metrics else blind))
    if is_driver(actions.service):
        active: _State = (True, "Deciding", "replicas follow the demand for KV tokens")
        found.append(("ScalingActive", active if observation.has_metrics else blind))
    return found


def _degraded(snapshot: Snapshot, actions: Actions, outcome: Outcome, mismatch: Condition | None) -> _State:
    if outcome.failure:
        return True, *outcome.failure
    if not actions.accepted and snapshot.deployment is not None:
        return True, "ServingLastAcceptedPlan", "the spec is not accepted; the workers keep the last accepted plan"
    if mismatch is not None:
        return True, mismatch.reason, mismatch.message
    if _deadline_passed((snapshot.deployment or {}).get("status") or {}):
        return True, "ProgressDeadlineExceeded", f"workers do not become ready{_why(snapshot, full=False)}"
    troubles = _troubles(snapshot)
    if troubles and all(found for _, found in troubles) and not any(is_ready(pod) for pod in snapshot.pods):
        return True, "WorkersCannotStart", f"no worker becomes ready{_why(snapshot, full=False)}"
    return False, "AsExpected", ""
