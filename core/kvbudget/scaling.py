"""How many replicas the demand for KV tokens needs: one pure decision per look at the workers.

    demand  = held + queued + refused demand, in tokens, over the ready workers
    wanted  = ⌈demand ÷ (tokens per replica × targetPercent ÷ 100)⌉, within minReplicas … maxReplicas

*Up* at once; but while replicas are pending (a model loads for minutes), only if the demand exceeds all that the
current replicas can hold, pending ones included. *Down* to the smallest number on which the demand would have fitted,
with 10 % to spare, at every look during the last ``scaleDownDelaySeconds``; a gap of more than ``stale_after_seconds``
in the looks or in their data begins that time anew. *Hold* while a ready worker's sample is missing or stale.
``minReplicas`` and ``maxReplicas`` hold always.

The state is only the memory of the last ``scaleDownDelaySeconds``: without it (an operator that restarted), a
scale-down comes later, and nothing else changes. It survives JSON: ``ScalingState(**json.loads(…))`` of its ``asdict``.

>>> policy = ScalingPolicy(min_replicas=1, max_replicas=4, target_percent=75, scale_down_delay_seconds=20)
>>> def worker(pod, reserved=0, queued=0, refused=0, at=0):
...     return WorkerSample(pod, ready=True, reserved_tokens=reserved, queued_tokens=queued, refused_tokens=refused,
...                         capacity_tokens=20_000, sampled_at_ms=at)
>>> state, decision = decide([worker("a", 18_000, 2_000, 4_500)], policy, ScalingState(), now_ms=0)
>>> decision.desired, decision.reason
(2, 'ScaleUp')
>>> decision.message
'24500 tokens demanded (18000 held, 2000 queued, 4500 refused) ÷ (20000 per replica × 75%) = 2 replicas'
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "Steady", "ScaleUp", "ScaleDown", "ScaleDownDelayed", "ReplicasPending", "AtMinimum", "AtMaximum", "NoMetrics"
]

_SPARE_PERCENT = 10
"""A removal must leave this share of the target free: else demand that wavers around the threshold would flap."""


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker pod as last seen. Neither ready nor starting: it drains or is broken, and neither its tokens nor its
    capacity count. Tokens: ``reserved`` by live requests, ``queued``, ``refused`` demand (:mod:`kvbudget.demand`),
    ``capacity`` of its pool; ``sampled_at_ms`` is None before the first sample."""

    pod: str
    ready: bool = False
    starting: bool = False
    reserved_tokens: int = 0
    queued_tokens: int = 0
    refused_tokens: int = 0
    capacity_tokens: int = 0
    sampled_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """``spec.scaling``; ``stale_after_seconds``: from that age on, a sample counts as missing."""

    min_replicas: int
    max_replicas: int
    target_percent: int = 75
    scale_down_delay_seconds: int = 300
    stale_after_seconds: int = 15


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Memory between looks: ``since_ms`` when unbroken data began, ``last_ms`` the last look that had data, ``peaks``
    the (time, replicas that the simulation needed) that may still be the maximum of the delay, highest first."""

    since_ms: int | None = None
    last_ms: int | None = None
    peaks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """``desired`` replicas with the inputs it follows from. ``reason`` is CamelCase, ``message`` the arithmetic.
    ``demand_percent``: demand against the tokens of the ready and starting replicas."""

    desired: int
    current: int
    reason: Reason
    message: str
    metrics_available: bool
    ready: int = 0
    starting: int = 0
    held_tokens: int = 0
    queued_tokens: int = 0
    refused_tokens: int = 0
    tokens_per_replica: int = 0
    demand_percent: int = 0

    @property
    def demand_tokens(self) -> int:
        return self.held_tokens + self.queued_tokens + self.refused_tokens


@dataclass(frozen=True, slots=True)
class _Demand:
    """The numbers of one look, from complete data."""

    ready: int
    starting: int
    held_tokens: int
    queued_tokens: int
    refused_tokens: int
    tokens_per_replica: int

    @property
    def tokens(self) -> int:
        return self.held_tokens + self.queued_tokens + self.refused_tokens

    def replicas_at(self, percent: int, per: int = 100) -> int:
        """⌈tokens ÷ (tokens per replica × percent ÷ per)⌉."""
        return -(-self.tokens * per // (self.tokens_per_replica * percent))


def decide(
    samples: Sequence[WorkerSample],
    policy: ScalingPolicy,
    state: ScalingState,
    now_ms: int,
    *,
    current: int | None = None,
) -> tuple[ScalingState, Decision]:
    """The next state and the wanted number of replicas.

    ``samples``: one per pod of the service. ``current``: the replicas asked for now (``spec.replicas``); None: as many
    as are ready or starting. Replicas asked for that have no pod yet count as starting.
    """
    ready = [s for s in samples if s.ready]
    starting = sum(1 for s in samples if s.starting and not s.ready)
    if current is None:
        current = len(ready) + starting
    missing = _missing(ready, policy, now_ms)
    if missing is not None:
        desired = _clamp(current, policy)
        decision = Decision(
            desired, current, "NoMetrics", missing, metrics_available=False, ready=len(ready), starting=starting
        )
        return state, decision
    demand = _Demand(
        len(ready),
        max(starting, current - len(ready)),
        sum(s.reserved_tokens for s in ready),
        sum(s.queued_tokens for s in ready),
        sum(s.refused_tokens for s in ready),
        min(s.capacity_tokens for s in ready),
    )
    state = _remember(state, policy, demand, now_ms)
    desired, reason, note = _replicas(demand, policy, state, current, now_ms)
    supply = (demand.ready + demand.starting) * demand.tokens_per_replica
    return state, Decision(
        desired=desired,
        current=current,
        reason=reason,
        message=_arithmetic(demand, policy) + note,
        metrics_available=True,
        ready=demand.ready,
        starting=demand.starting,
        held_tokens=demand.held_tokens,
        queued_tokens=demand.queued_tokens,
        refused_tokens=demand.refused_tokens,
        tokens_per_replica=demand.tokens_per_replica,
        demand_percent=-(-demand.tokens * 100 // supply),
    )


def _missing(ready: Sequence[WorkerSample], policy: ScalingPolicy, now_ms: int) -> str | None:
    """Why the demand cannot be known, or None."""
    if not ready:
        return "no ready worker to ask for its demand; the number of replicas is held"
    oldest_ms = now_ms - policy.stale_after_seconds * 1000
    blind = sorted(
        s.pod for s in ready if s.sampled_at_ms is None or s.sampled_at_ms < oldest_ms or s.capacity_tokens < 1
    )
    if not blind:
        return None
    return (
        f"no sample younger than {policy.stale_after_seconds} s from {', '.join(blind[:3])}"
        f"{f' and {len(blind) - 3} more' if len(blind) > 3 else ''}; the number of replicas is held"
    )


def _remember(state: ScalingState, policy: ScalingPolicy, demand: _Demand, now_ms: int) -> ScalingState:
    """The state with this look in it: a falling staircase of what the simulated removal needed."""
    unbroken = (
        state.since_ms is not None
        and state.last_ms is not None
        and 0 <= now_ms - state.last_ms <= policy.stale_after_seconds * 1000
    )
    needed = demand.replicas_at(policy.target_percent * (100 - _SPARE_PERCENT), 100 * 100)
    oldest_ms = now_ms - policy.scale_down_delay_seconds * 1000
    kept = [peak for peak in state.peaks if peak[0] >= oldest_ms and peak[1] > needed] if unbroken else []
    return ScalingState(state.since_ms if unbroken else now_ms, now_ms, (*kept, (now_ms, needed)))


def _replicas(
    demand: _Demand, policy: ScalingPolicy, state: ScalingState, current: int, now_ms: int
) -> tuple[int, Reason, str]:
    """Desired replicas, why, and what to add to the arithmetic."""
    wanted = demand.replicas_at(policy.target_percent)
    if current != _clamp(current, policy):
        limit: Reason = "AtMinimum" if current < policy.min_replicas else "AtMaximum"
        return _clamp(max(wanted, min(current, policy.max_replicas)), policy), limit, _bounds(policy)
    if wanted > current:
        if current == policy.max_replicas:
            return current, "AtMaximum", _bounds(policy)
        if demand.starting and demand.tokens <= current * demand.tokens_per_replica:
            return current, "ReplicasPending", f"; {demand.starting} replicas are starting and can hold it"
        bounded = _clamp(wanted, policy)
        return bounded, "ScaleUp", _bounds(policy) if bounded < wanted else ""
    return _removal(policy, state, current, now_ms)


def _removal(policy: ScalingPolicy, state: ScalingState, current: int, now_ms: int) -> tuple[int, Reason, str]:
    needed_now = _clamp(state.peaks[-1][1], policy)
    if needed_now >= current:
        if current == policy.min_replicas and state.peaks[-1][1] < current:
            return current, "AtMinimum", _bounds(policy)
        return current, "Steady", ""
    delay_ms = policy.scale_down_delay_seconds * 1000
    peak = _clamp(state.peaks[0][1], policy)
    watched_ms = now_ms - (now_ms if state.since_ms is None else state.since_ms)
    if watched_ms >= delay_ms and peak < current:
        return peak, "ScaleDown", f"; {peak} would have held it for {policy.scale_down_delay_seconds} s"
    note = f"; {needed_now} would hold it, and must for {policy.scale_down_delay_seconds} s"
    return current, "ScaleDownDelayed", note


def _clamp(replicas: int, policy: ScalingPolicy) -> int:
    return min(max(replicas, policy.min_replicas), policy.max_replicas)


def _bounds(policy: ScalingPolicy) -> str:
    return f", within {policy.min_replicas} … {policy.max_replicas}"


def _arithmetic(demand: _Demand, policy: ScalingPolicy) -> str:
    wanted = demand.replicas_at(policy.target_percent)
    return (
        f"{demand.tokens} tokens demanded ({demand.held_tokens} held, {demand.queued_tokens} queued, "
        f"{demand.refused_tokens} refused) ÷ ({demand.tokens_per_replica} per replica × {policy.target_percent}%) = "
        f"{wanted} replica{'' if wanted == 1 else 's'}"
    )
