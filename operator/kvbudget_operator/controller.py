"""The shell around the pure parts: snapshot → decide → apply → status of one service, and the loops that feed it.

Nothing here is a decision. What is remembered between reconciles is only to write less: losing it changes nothing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kvbudget.api import LLMServiceStatus
from kvbudget.errors import KvbudgetError
from kvbudget.scaling import Decision
from kvbudget_operator import status
from kvbudget_operator.apply import NameTaken, StillLeaving, apply_children
from kvbudget_operator.children import Owner, config_map_name
from kvbudget_operator.client import ApiError, Client, Ref
from kvbudget_operator.events import event
from kvbudget_operator.gather import Indexes, Key, Snapshot, child_key, gather, workers
from kvbudget_operator.metrics import OperatorMetrics
from kvbudget_operator.objects import Object
from kvbudget_operator.observe import Observation, demand_to_write, is_driver, observe
from kvbudget_operator.pods import drain_aborted
from kvbudget_operator.queue import WorkQueue
from kvbudget_operator.reconcile import Actions, Deletion, decide, is_deleting
from kvbudget_operator.scaler import Scaler
from kvbudget_operator.scrape import Scraper
from kvbudget_operator.settings import (
    DEMAND_SECONDS,
    RECONCILE_WORKERS,
    RESYNC_SECONDS,
    SCALING_WRITES,
    OperatorSettings,
)
from kvbudget_operator.status import Notice, Outcome

logger = logging.getLogger(__name__)

_LEAVING_SECONDS = 2.0
_CONFLICT_SECONDS = 0.2
_TOLD_PODS = 1000


@dataclass
class _View:
    """What was last made of one service. ``seen`` is the resourceVersion from which ``written`` was made: while the
    watch still shows it, ``written`` is the newer status. ``scaled`` likewise: the one from which the replicas were
    last changed. ``wanted``: the newest decision that changes them, with what it was made from."""

    uid: str
    actions: Actions | None = None
    observation: Observation | None = None
    demand_written_at: float = float("-inf")
    seen: str = ""
    written: LLMServiceStatus | None = None
    scaled: str = ""
    wanted: tuple[Snapshot, Decision] | None = None


class Controller:
    """Made before the watch starts; :meth:`start` gets the indexes."""

    def __init__(self, settings: OperatorSettings, client: Client, metrics: OperatorMetrics) -> None:
        self._settings = settings
        self._client = client
        self._metrics = metrics
        self._indexes: Indexes | None = None
        self._views: dict[Key, _View] = {}
        self._told: deque[str] = deque(maxlen=_TOLD_PODS)  # uids of pods whose last words were told; the oldest go
        self._scaling: dict[Key, asyncio.Task[None]] = {}
        self._scaling_slots = asyncio.Semaphore(SCALING_WRITES)
        self._scaler = Scaler(client, scrape_seconds=settings.scrape_seconds)
        self._scraper = Scraper(lambda: workers(self.indexes), every_seconds=settings.scrape_seconds)
        self._tasks: list[asyncio.Task[None]] = []
        self.queue: WorkQueue[Key] = WorkQueue(self.reconcile, workers=RECONCILE_WORKERS, observer=metrics)
        self.stopped = asyncio.Event()
        """Set when a background task died: the process must end and be restarted."""

    @property
    def indexes(self) -> Indexes:
        """Raises RuntimeError before :meth:`start`."""
        if self._indexes is None:
            raise RuntimeError("the controller was not started")
        return self._indexes

    def not_ready(self) -> str | None:
        """Why ``/readyz`` is not ok."""
        return "starting" if self._indexes is None else None

    async def start(self, indexes: Indexes) -> None:
        """Start the queue, the resync and the scrape loop."""
        self._indexes = indexes
        for name, work in (
            ("queue", self.queue.run()),
            ("resync", self.queue.resync(lambda: list(self.indexes.services), RESYNC_SECONDS)),
            ("scrape", self._scraper.run(self._after_round)),
        ):
            task = asyncio.create_task(work, name=name)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """End the loops; a write in flight is finished by its thread."""
        tasks = [*self._tasks, *self._scaling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, key: Key) -> None:
        """Something about this service changed."""
        self.queue.add(key)

    async def pod_changed(self, pod: Object) -> None:
        """A pod changed, or is gone. What its worker said last is told at once: the pod may not be seen again."""
        key = child_key(pod["metadata"])
        requests, uid = drain_aborted(pod), str(pod["metadata"]["uid"])
        if requests and uid not in self._told:
            snapshot = gather(self.indexes, key)
            if snapshot is not None and snapshot.is_worker(pod):
                self._told.append(uid)
                note = f"pod {pod['metadata']['name']} cut off {requests} requests: its drain took longer than "
                notice = Notice("Warning", "DrainAborted", note + "spec.drain.timeoutSeconds")
                await self._post(Owner.of(snapshot.service), notice)
        self.queue.add(key)

    def add_users(self, gpu_class: str) -> None:
        """Something about this class changed."""
        for key in list(self.indexes.users.get(gpu_class, ())):
            self.queue.add(key)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one service closer to what is wanted. Returns when to look again, if not on the next event. Raises on
        everything that a later try may cure."""
        snapshot = gather(self.indexes, key)
        if snapshot is None:
            self._views.pop(key, None)
            return None
        if is_deleting(snapshot.service):
            return None
        view = self._view(key, snapshot)
        snapshot = _with_written_status(snapshot, view)
        view.actions = actions = decide(snapshot, self._settings.worker)
        again: float | None = None
        error: KvbudgetError | None = None
        outcome = Outcome()
        try:
            outcome = await self._act(snapshot, actions)
        except StillLeaving as waiting:
            outcome, again = Outcome(failure=("WaitingForOldObjects", str(waiting))), _LEAVING_SECONDS
        except NameTaken as taken:
            outcome, error = Outcome(failure=("NameTaken", str(taken))), taken
        except ApiError as refused:
            if refused.status == 409:
                return _CONFLICT_SECONDS
            if refused.is_namespace_leaving:  # the service goes with it: its own deletion is the last event
                return None
            outcome, error = Outcome(failure=("ApplyFailed", str(refused))), refused
        is_written = await self._write_status(snapshot, actions, outcome, view)
        self._metrics.reconciled(changed=is_written or outcome.writes > 0)
        if error is not None:
            raise error
        return again

    async def _act(self, snapshot: Snapshot, actions: Actions) -> Outcome:
        """Raises NameTaken, StillLeaving and ApiError; all that was done until then stays."""
        service = Ref.of(snapshot.service)
        owner = Owner.of(snapshot.service)
        writes = 0
        if actions.set_replicas is not None:
            version = snapshot.service["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": actions.set_replicas}}
            await self._client.merge(service, patch)
            self._metrics.wrote("replicas")
            note = f"spec.replicas was left out: {actions.set_replicas}, from {actions.sizing}"
            await self._post(owner, Notice("Normal", "ReplicasSet", note))
            writes += 1
        applied = await apply_children(self._client, owner.uid, actions.apply, snapshot.children)
        self._metrics.wrote("child", applied)
        writes += applied
        plan = actions.plan
        if applied and actions.accepted and plan is not None and snapshot.plan_hash not in (None, plan.hash()):
            note = f"plan {snapshot.plan_hash} → {plan.hash()}: {plan.budget.tokens} KV tokens per replica"
            await self._post(owner, Notice("Normal", "PlanChanged", note))
        if actions.scale_child and snapshot.deployment is not None:
            patch = {"spec": {"replicas": actions.replicas}}
            await self._client.merge(Ref.of(snapshot.deployment), patch, subresource="scale")
            self._metrics.wrote("child")
            writes += 1
        for deletion in await self._still_unwanted(snapshot, actions.delete):
            await self._client.delete(deletion.ref, uid=deletion.uid)
            self._metrics.wrote("delete")
            writes += 1
        if writes:
            logger.info("%s: %d objects written", service, writes)
        return Outcome(writes)

    async def _still_unwanted(self, snapshot: Snapshot, deletions: Sequence[Deletion]) -> list[Deletion]:
        """Those that the live Deployment does not name: the one that the watch shows may be older than a plan that we
        have just put into it, and a plan that is gone could not be made again once the service is invalid."""
        if snapshot.deployment is None or not any(each.ref.kind == "ConfigMap" for each in deletions):
            return list(deletions)
        named = config_map_name(await self._client.get(Ref.of(snapshot.deployment)))
        return [each for each in deletions if each.ref.kind != "ConfigMap" or each.ref.name != named]

    async def _write_status(self, snapshot: Snapshot, actions: Actions, outcome: Outcome, view: _View) -> bool:
        """Write the status where it differs from the last one. Returns whether it did."""
        old = snapshot.status
        loop_time = asyncio.get_running_loop().time()
        fresh = view.observation.demand if view.observation else None
        demand = demand_to_write(old.demand, fresh, loop_time - view.demand_written_at >= DEMAND_SECONDS)
        decisions = self._scaler.decisions(snapshot)
        new = status.build(snapshot, actions, outcome, view.observation, demand, decisions, _rfc3339(datetime.now(UTC)))
        if new == old:
            return False
        try:
            await self._client.apply(status.body(snapshot, new), subresource="status")
        except ApiError as error:
            if error.status in (404, 409):  # deleted, or deleted and made anew: its event is on the way
                return False
            raise
        self._metrics.wrote("status")
        view.seen, view.written = snapshot.service["metadata"]["resourceVersion"], new
        if demand != old.demand:
            view.demand_written_at = loop_time
        for notice in status.notices(old, new):
            await self._post(Owner.of(snapshot.service), notice)
        return True

    async def _post(self, owner: Owner, notice: Notice) -> None:
        """Post an Event. One that is refused (a namespace that is going away) is only logged."""
        try:
            await self._client.create(event(owner, notice, datetime.now(UTC), self._settings.pod_name))
            self._metrics.wrote("event")
        except ApiError as error:
            logger.warning("event %s about %s/%s was lost: %s", notice.reason, owner.namespace, owner.name, error)

    async def _after_round(self) -> None:
        """All workers were read: scale, and reconcile the services about which there is news. Waits for no request, and
        what goes wrong with one service is that service's alone."""
        self._metrics.scraped(len(self._scraper.readings))
        uids = []
        for key in list(self.indexes.services):
            snapshot = gather(self.indexes, key)
            view = self._views.get(key)
            if snapshot is None or view is None or view.actions is None or is_deleting(snapshot.service):
                continue
            uids.append(view.uid)
            with _told_of(key):
                self._look(key, _with_written_status(snapshot, view), view, view.actions)
        self._scaler.forget_all_but(uids)

    def _look(self, key: Key, snapshot: Snapshot, view: _View, actions: Actions) -> None:
        """Observe and decide; a change of replicas is begun, unless the last one is still on its way."""
        loop_time = asyncio.get_running_loop().time()
        readings = self._scraper.readings
        service = actions.service
        decision = self._scaler.look(snapshot, service, readings, int(loop_time * 1000))
        before = view.observation
        view.observation = observe(snapshot.pods, readings, actions.plan, decision)
        may_write = loop_time - view.demand_written_at >= DEMAND_SECONDS
        is_due = demand_to_write(snapshot.status.demand, view.observation.demand, may_write) != snapshot.status.demand
        if is_due or before is None or replace(before, demand=None) != replace(view.observation, demand=None):
            self.queue.add(key)
        is_wanted = (
            is_driver(service) and decision.desired != decision.current and "replicas" in snapshot.service["spec"]
        )
        is_new = snapshot.service["metadata"]["resourceVersion"] != view.scaled
        view.wanted = (snapshot, decision) if is_wanted and is_new else None
        if view.wanted is not None and key not in self._scaling:
            task = asyncio.create_task(self._scale(key, view), name=f"scale {key[0]}/{key[1]}")
            self._scaling[key] = task
            task.add_done_callback(lambda _: self._scaling.pop(key, None))

    async def _scale(self, key: Key, view: _View) -> None:
        """In turn; what is wanted is looked up then, since a turn may take long to come."""
        async with self._scaling_slots:
            if view.wanted is None:
                return
            snapshot, decision = view.wanted
            with _told_of(key):
                await self._scaler.act(snapshot, decision, self._scraper.readings, _rfc3339(datetime.now(UTC)))
                view.scaled = snapshot.service["metadata"]["resourceVersion"]
                self._metrics.wrote("replicas")
                note = f"{decision.current} → {decision.desired} replicas: {decision.message}"
                await self._post(Owner.of(snapshot.service), Notice("Normal", decision.reason, note))

    def _view(self, key: Key, snapshot: Snapshot) -> _View:
        uid = str(snapshot.service["metadata"]["uid"])
        view = self._views.get(key)
        if view is None or view.uid != uid:
            view = self._views[key] = _View(uid)
        return view

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            logger.critical("background task %s ended", task.get_name(), exc_info=task.exception())
            self.stopped.set()


@contextmanager
def _told_of(key: Key) -> Iterator[None]:
    """What fails in the block is told with the service's name; the next round of readings decides again."""
    try:
        yield
    except Exception as error:
        is_bug = not isinstance(error, KvbudgetError)  # the others say all that there is to say
        text = "scaling of %s/%s failed and is decided again: %s"
        logger.log(logging.ERROR if is_bug else logging.WARNING, text, *key, error, exc_info=is_bug)


def _with_written_status(snapshot: Snapshot, view: _View) -> Snapshot:
    """The snapshot with the status that we wrote last, while the watch has not shown it yet."""
    if view.written is None or snapshot.service["metadata"]["resourceVersion"] != view.seen:
        return snapshot
    written = view.written.model_dump(by_alias=True, exclude_none=True)
    return replace(snapshot, service={**snapshot.service, "status": written})


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
