"""Before the watch starts: the API server answers, knows us, and serves our kinds. Else we say so, and wait."""

import asyncio
import logging

from kvbudget.contract import API_VERSION
from kvbudget.errors import InputError
from kvbudget_operator.client import ApiError, Client

logger = logging.getLogger(__name__)

KINDS = frozenset({"llmservices", "gpuclasses"})
_EVERY_SECONDS = 2.0


class Preflight:
    """:attr:`waiting_for` says what is missing, for ``/readyz``; None: nothing."""

    def __init__(self) -> None:
        self.waiting_for: str | None = "the API server"

    async def wait(self, client: Client) -> None:
        """Return when our kinds are served. Raises InputError where waiting cannot help: our token is not accepted."""
        while (found := await _missing(client)) is not None:
            if found != self.waiting_for:
                logger.warning("waiting: %s", found)
            self.waiting_for = found
            await asyncio.sleep(_EVERY_SECONDS)
        self.waiting_for = None


async def _missing(client: Client) -> str | None:
    try:
        served = await client.discover(API_VERSION)
    except ApiError as error:
        if error.status == 401:
            reason = f"the API server does not accept our credentials ({error.message}): check the token or certificate"
            raise InputError("KUBECONFIG", reason) from error
        if error.status == 404:
            return f"the CRDs of {API_VERSION} are not installed (chart value crds.enabled, or kubectl apply -f crds/)"
        return f"the API server does not answer ({error})"
    absent = KINDS - {each["name"] for each in served.get("resources") or ()}
    return f"the CRDs of {', '.join(sorted(absent))} are not installed" if absent else None
