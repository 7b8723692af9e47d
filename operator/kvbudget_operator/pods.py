"""What a pod's status says, in the few words that decisions need."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvbudget.contract import DRAIN_ABORTED_NOTE

_BROKEN = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
_ERROR = "error: "
"""How the worker begins the line that says why it cannot start."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod is not ready: ``reason`` in one word, ``detail`` as the scheduler, the kubelet or the worker says
    it."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


def is_leaving(pod: Mapping[str, Any]) -> bool:
    """Deleted and draining, or finished."""
    return bool(pod["metadata"].get("deletionTimestamp")) or _status(pod).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Takes requests."""
    return not is_leaving(pod) and _condition(pod, "Ready").get("status") == "True"


def is_starting(pod: Mapping[str, Any]) -> bool:
    """Not ready yet, with nothing that keeps it from becoming so now; its container may have crashed before."""
    return not is_leaving(pod) and not is_ready(pod) and _held_up(pod) is None


def trouble(pod: Mapping[str, Any]) -> Trouble | None:
    """Why a pod that is not ready is not; None: nothing known. What its container crashed with counts while it stands,
    waits and runs again, so that a crash loop does not come and go."""
    return _held_up(pod) or next(_crashes(pod), None)


def _held_up(pod: Mapping[str, Any]) -> Trouble | None:
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return Trouble(scheduled.get("reason", "Unschedulable"), scheduled.get("message", ""))
    for container in _status(pod).get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BROKEN:
            ended = _ended(container)
            return Trouble(waiting["reason"], _last_words(ended) if ended else waiting.get("message", ""))
    return None


def _crashes(pod: Mapping[str, Any]) -> Iterator[Trouble]:
    for container in _status(pod).get("containerStatuses") or ():
        ended = _ended(container)
        if ended.get("exitCode"):
            yield Trouble("Crashed", _last_words(ended))


def drain_aborted(pod: Mapping[str, Any]) -> int:
    """Requests that the worker cut off when its drain timed out, as its last note says; 0: none, or not ended."""
    for container in _status(pod).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        note = str(ended.get("message") or "")
        count = note.removeprefix(DRAIN_ABORTED_NOTE).strip()
        if note.startswith(DRAIN_ABORTED_NOTE) and count.isdecimal():
            return int(count)
    return 0


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the container ended last: now, or before it was started again; empty where it never did."""
    states = (container.get("state") or {}, container.get("lastState") or {})
    return next((state["terminated"] for state in states if state.get("terminated")), {})


def _last_words(ended: Mapping[str, Any]) -> str:
    """Exit code, the kubelet's reason, and one line of the message: the worker's own error. A message that is the tail
    of a log (the worker was killed, or is another image) may have it anywhere, or have none: then the last line."""
    lines = [line.strip() for line in (ended.get("message") or "").splitlines() if line.strip()]
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    reason = ended.get("reason", "Error")
    parts = (f"exit code {ended.get('exitCode')}", "" if reason == "Error" else reason, *(errors or lines)[-1:])
    return ", ".join(filter(None, parts))


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = _status(pod).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})
