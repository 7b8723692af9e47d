"""What a pod's status says, in the few words that decisions need."""

from collections.abc import Mapping
from typing import Any

from kvbudget.contract import DRAIN_ABORTED_NOTE

_BROKEN = frozenset(
    {"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError"}
)


def is_leaving(pod: Mapping[str, Any]) -> bool:
    """Deleted and draining, or finished."""
    return bool(pod["metadata"].get("deletionTimestamp")) or _status(pod).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Takes requests."""
    return not is_leaving(pod) and _condition(pod, "Ready").get("status") == "True"


def is_starting(pod: Mapping[str, Any]) -> bool:
    """Not ready yet, with nothing known that keeps it from becoming so."""
    return not is_leaving(pod) and not is_ready(pod) and trouble(pod) is None


def trouble(pod: Mapping[str, Any]) -> str | None:
    """Why the pod cannot start, as the scheduler or the kubelet says it; None: nothing known."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'Unschedulable')}: {scheduled.get('message', '')}"
    for container in _status(pod).get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BROKEN:
            return f"{waiting['reason']}: {_ended(container) or waiting.get('message', '')}"
    return None


def drain_aborted(pod: Mapping[str, Any]) -> int:
    """Requests that the worker cut off when its drain timed out, as its last note says; 0: none, or not ended."""
    for container in _status(pod).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        note = str(ended.get("message") or "")
        count = note.removeprefix(DRAIN_ABORTED_NOTE).strip()
        if note.startswith(DRAIN_ABORTED_NOTE) and count.isdecimal():
            return int(count)
    return 0


def _ended(container: Mapping[str, Any]) -> str:
    """Last words of a container that crashed: its termination message is the worker's own error."""
    ended = (container.get("lastState") or {}).get("terminated") or {}
    if not ended:
        return ""
    message = (ended.get("message") or "").strip()
    return f"exit code {ended.get('exitCode')}{f', {message}' if message else ''}"


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = _status(pod).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})
