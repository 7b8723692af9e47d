"""Events about LLMServices: few, with the reasons of the conditions. Lost or doubled ones do no harm."""

import secrets
from datetime import datetime
from typing import Any

from kvbudget.contract import API_VERSION, GROUP
from kvbudget_operator.children import Owner
from kvbudget_operator.status import Notice

_MAX_NOTE = 1024


def event(owner: Owner, notice: Notice, now: datetime, instance: str) -> dict[str, Any]:
    """An ``events.k8s.io/v1`` Event about the service. ``now`` is aware; ``instance`` names the reporting pod."""
    note = notice.note if len(notice.note) <= _MAX_NOTE else f"{notice.note[: _MAX_NOTE - 1]}…"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{owner.name}.{secrets.token_hex(8)}", "namespace": owner.namespace},
        "type": notice.type,
        "reason": notice.reason,
        "action": "Reconcile",
        "note": note,
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"{GROUP}/operator",
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": "LLMService",
            "namespace": owner.namespace,
            "name": owner.name,
            "uid": owner.uid,
        },
    }
