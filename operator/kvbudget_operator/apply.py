"""Write the wanted children: server-side apply of whole objects under our own field manager, by force on what is ours.

What is not ours is never touched: a child's name that is taken by somebody else's object is an error that says so.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvbudget.contract import GROUP
from kvbudget.errors import KvbudgetError
from kvbudget_operator.client import ApiError, Client, Ref
from kvbudget_operator.gather import controller_uid
from kvbudget_operator.objects import Object

ANNOTATION_APPLIED = f"{GROUP}/applied"
"""Hash of what was applied last. With a live object that still holds all of it, another apply would change nothing."""


class NameTaken(KvbudgetError):
    """A child's name belongs to an object that is not ours."""

    def __init__(self, ref: Ref) -> None:
        fix = "delete or rename it, or give the LLMService another name"
        super().__init__(f"{ref} exists and does not belong to this LLMService: {fix}")


class StillLeaving(KvbudgetError):
    """A child of a deleted LLMService of the same name waits for the garbage collector; a later try succeeds."""

    def __init__(self, ref: Ref) -> None:
        super().__init__(f"{ref} belongs to a deleted LLMService of this name and is about to be removed")


async def apply_children(client: Client, owner_uid: str, wanted: Sequence[Object], live: Sequence[Object]) -> int:
    """Apply those of ``wanted`` that ``live`` (as last seen) does not show already, in order. Returns how many changed:
    an apply of what the API server only spells otherwise (``cpu: "0.5"`` as ``500m``) leaves the object as it is.

    Raises NameTaken, StillLeaving and ApiError; what comes after the failing object is then not applied.
    """
    seen = {Ref.of(obj): obj for obj in live}
    writes = 0
    for obj in wanted:
        marked = _marked(obj)
        ref = Ref.of(obj)
        before = seen.get(ref)
        if before is None:
            await _check_name(client, ref, owner_uid, obj)
        elif is_applied(marked, before):
            continue
        after = await client.apply(marked)
        if before is None or after["metadata"]["resourceVersion"] != before["metadata"].get("resourceVersion"):
            writes += 1
    return writes


def is_applied(wanted: Any, live: Any) -> bool:
    """Whether applying ``wanted`` (marked with its hash) would change nothing: every value of it is in ``live``, and by
    the hash it was applied last, so that nothing is left of what was wanted before.

    Maps may hold more (defaults), lists must have the same length. May say no where it is yes (a quantity that the API
    server wrote differently): then an apply changes nothing.
    """
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(is_applied(value, live.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        same_length = isinstance(live, list) and len(live) == len(wanted)
        return same_length and all(is_applied(one, other) for one, other in zip(wanted, live, strict=True))
    return bool(live == wanted)


def _marked(obj: Object) -> Object:
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {**obj, "metadata": {**obj["metadata"], "annotations": {ANNOTATION_APPLIED: digest}}}


async def _check_name(client: Client, ref: Ref, owner_uid: str, wanted: Object) -> None:
    """The watch shows only what carries our label, so an object that it does not show may exist all the same."""
    try:
        found = await client.get(ref)
    except ApiError as error:
        if error.status == 404:
            return
        raise
    if controller_uid(found) == owner_uid:
        return
    reference = wanted["metadata"]["ownerReferences"][0]
    for other in found["metadata"].get("ownerReferences") or ():
        if (other["kind"], other["name"]) == (reference["kind"], reference["name"]) and other.get("controller"):
            raise StillLeaving(ref)
    raise NameTaken(ref)
