"""Driver Operator: what :mod:`kvbudget.scaling` decides is written to ``spec.replicas`` through the scale subresource.

Memory is only what the scaling itself wants (a restart delays a scale-down) and decisions that the status does not show
yet. Before replicas go down, every pod gets its held tokens as deletion cost, so that the least loaded one is drained.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvbudget.api import DecisionStatus, LLMService
from kvbudget.contract import ANNOTATION_DELETION_COST
from kvbudget.scaling import Decision, ScalingState, decide
from kvbudget_operator import observe
from kvbudget_operator.client import ApiError, Client, Ref
from kvbudget_operator.gather import Snapshot
from kvbudget_operator.objects import Object
from kvbudget_operator.pods import is_leaving
from kvbudget_operator.scrape import Reading
from kvbudget_operator.status import DECISIONS

logger = logging.getLogger(__name__)


@dataclass
class _Memory:
    state: ScalingState = field(default_factory=ScalingState)
    decisions: list[DecisionStatus] = field(default_factory=list)


class Scaler:
    """One for all services; remembers by uid."""

    def __init__(self, client: Client, *, scrape_seconds: float) -> None:
        self._client = client
        self._scrape_seconds = scrape_seconds
        self._memory: dict[str, _Memory] = {}

    def look(
        self, snapshot: Snapshot, service: LLMService | None, readings: Mapping[str, Reading], now_ms: int
    ) -> Decision:
        """Decide, and remember what the next decision needs. Writes nothing."""
        memory = self._memory.setdefault(_uid(snapshot), _Memory())
        replicas = _replicas(snapshot)
        policy = observe.policy(service, replicas, self._scrape_seconds)
        samples = observe.samples(snapshot.pods, readings)
        memory.state, decision = decide(samples, policy, memory.state, now_ms, current=replicas)
        return decision

    async def act(self, snapshot: Snapshot, decision: Decision, readings: Mapping[str, Reading], now: str) -> None:
        """Write the decided replicas, and record the decision. Raises ApiError; the next look then decides again."""
        if decision.desired < decision.current:
            for ref, cost in deletion_costs(snapshot.pods, readings):
                await self._annotate(ref, cost)
        ref = Ref.of(snapshot.service)
        await self._client.merge(ref, {"spec": {"replicas": decision.desired}}, subresource="scale")
        logger.info("%s: %d → %d replicas: %s", ref, decision.current, decision.desired, decision.message)
        memory = self._memory.get(_uid(snapshot))
        if memory is not None:  # the service may have gone meanwhile
            memory.decisions.insert(0, _record(decision, now))

    def decisions(self, snapshot: Snapshot) -> list[DecisionStatus]:
        """The last decisions, newest first: those that the status shows and those that it does not show yet."""
        shown = snapshot.status.decisions
        memory = self._memory.get(_uid(snapshot))
        fresh = [] if memory is None else [each for each in memory.decisions if each not in shown]
        if memory is not None:
            memory.decisions = fresh
        return [*fresh, *shown][:DECISIONS]

    def forget_all_but(self, uids: Iterable[str]) -> None:
        """Drop the memory of services that are gone."""
        kept = set(uids)
        self._memory = {uid: memory for uid, memory in self._memory.items() if uid in kept}

    async def _annotate(self, ref: Ref, cost: int) -> None:
        try:
            await self._client.merge(ref, {"metadata": {"annotations": {ANNOTATION_DELETION_COST: str(cost)}}})
        except ApiError as error:
            if error.status != 404:
                raise


def deletion_costs(pods: Iterable[Object], readings: Mapping[str, Reading]) -> list[tuple[Ref, int]]:
    """Pods whose annotation must change, with the tokens that each holds: the ReplicaSet deletes the lowest first."""
    costs = []
    for pod in pods:
        metadata = pod["metadata"]
        reading = readings.get(metadata["uid"])
        cost = 0 if reading is None else reading.reserved_tokens
        shown = (metadata.get("annotations") or {}).get(ANNOTATION_DELETION_COST, "0")
        if not is_leaving(pod) and shown != str(cost):
            costs.append((Ref("v1", "Pod", metadata["namespace"], metadata["name"]), cost))
    return costs


def _record(decision: Decision, now: str) -> DecisionStatus:
    return DecisionStatus(
        time=now,
        current=decision.current,
        desired=decision.desired,
        reason=decision.reason,
        message=decision.message,
        held_tokens=decision.held_tokens,
        queued_tokens=decision.queued_tokens,
        refused_tokens=decision.refused_tokens,
        tokens_per_replica=decision.tokens_per_replica,
    )


def _uid(snapshot: Snapshot) -> str:
    return str(snapshot.service["metadata"]["uid"])


def _replicas(snapshot: Snapshot) -> int:
    replicas = (snapshot.service.get("spec") or {}).get("replicas")
    return replicas if isinstance(replicas, int) else 0
