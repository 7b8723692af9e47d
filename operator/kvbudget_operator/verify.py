"""Proof that the webhook works, for the chart's hook: a dry-run create that the webhook, and only it, refuses.

An object that would be admitted needs a GPUClass, which a new cluster has not. One that names a class which cannot
exist is valid by its schema and is refused by the webhook alone, so the refusal proves the whole way there and back.
"""

import asyncio
import logging

from kvbudget.contract import API_VERSION
from kvbudget.errors import KvbudgetError
from kvbudget_operator.client import ApiError, Client
from kvbudget_operator.objects import Object

logger = logging.getLogger(__name__)

MISSING_CLASS = "kvbudget-verify-no-such-class"
_EVERY_SECONDS = 1.0


class VerifyError(KvbudgetError):
    """The webhook did not answer in time; the message says what did, and what to do."""


def impossible(namespace: str) -> Object:
    """A service that the schema admits and the webhook refuses."""
    return {
        "apiVersion": API_VERSION,
        "kind": "LLMService",
        "metadata": {"name": "kvbudget-verify", "namespace": namespace},
        "spec": {
            "model": {"name": "SmolLM2-135M-Instruct", "source": {"pvc": {"claimName": "none"}}},
            "gpu": {"class": MISSING_CLASS},
        },
    }


async def verify(client: Client, namespace: str, timeout_seconds: float) -> None:
    """Return when the webhook has refused the impossible service. Raises VerifyError at the deadline, or at once where
    waiting cannot help (not allowed to ask)."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    while True:
        why_not = await _try(client, namespace)
        if why_not is None:
            logger.info("the webhook answers")
            return
        if loop.time() + _EVERY_SECONDS > deadline:
            raise VerifyError(
                f"the webhook did not answer within {timeout_seconds:.0f} s: {why_not}. Look at the admission pods: "
                f"kubectl -n {namespace} get pods,endpointslices; kubectl -n {namespace} logs -l "
                "app.kubernetes.io/component=admission"
            )
        logger.info("not yet: %s", why_not)
        await asyncio.sleep(_EVERY_SECONDS)


async def _try(client: Client, namespace: str) -> str | None:
    """None: refused as it must be. Else what happened. Raises VerifyError where waiting cannot help."""
    try:
        await client.create(impossible(namespace), dry_run=True)
    except ApiError as error:
        if "denied the request" in error.message and MISSING_CLASS in error.message:
            return None
        if error.status in (401, 403):
            raise VerifyError(f"not allowed to create LLMServices in {namespace} (dry run): {error.message}") from error
        return str(error)
    return "the API server admitted an impossible service without asking the webhook"
