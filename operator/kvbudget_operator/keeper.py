"""Keeps the webhook certificate served, in its Secret and trusted by the API server. Any number of replicas may run it.

Self-signed: the Secret, which the chart makes empty, is filled by whoever comes first (the others read what it wrote),
and every replica puts its bundle into the webhook configuration. From files: somebody else keeps both, we serve and
watch.
"""

import asyncio
import base64
import logging
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kvbudget.errors import KvbudgetError
from kvbudget_operator import certs
from kvbudget_operator.certs import Pair
from kvbudget_operator.client import ApiError, Client, Ref
from kvbudget_operator.metrics import AdmissionMetrics
from kvbudget_operator.objects import Object
from kvbudget_operator.settings import AdmissionSettings

logger = logging.getLogger(__name__)

CHECK_SECONDS = 30.0
RETRY_SECONDS = 1.0
_CONFIG = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")


class NotYet(KvbudgetError):
    """Something that others must make first is not there; the message says what."""


class Keeper:
    """``context`` serves the current certificate; :attr:`not_ready` says what is still missing."""

    def __init__(self, settings: AdmissionSettings, client: Client, metrics: AdmissionMetrics) -> None:
        self._settings = settings
        self._client = client
        self._metrics = metrics
        self._names = certs.service_names(settings.service, settings.namespace, settings.extra_sans)
        self._served: Pair | None = None
        self.context: ssl.SSLContext = certs.server_context()
        self.not_ready: str | None = "no certificate yet"

    async def run(self) -> None:
        """Check every CHECK_SECONDS, sooner after a failure; until cancelled."""
        while True:
            try:
                await self.check()
                await asyncio.sleep(CHECK_SECONDS)
            except (ApiError, NotYet, OSError, ValueError) as error:
                # What is served stays served: only a replica that never was ready says that it is not.
                if self._served is None:
                    self.not_ready = str(error)
                logger.warning("certificate check failed, next try in %.0f s: %s", RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def check(self) -> None:
        """One pass: the certificate is there and good, the API server trusts it, and it is served. Raises NotYet,
        ApiError, and OSError or ValueError where certificate files are unreadable."""
        certificate = self._settings.certificate
        if isinstance(certificate, Path):
            self._serve(_read(certificate))
            await self._check_trusted()
        else:
            config = await self._config()
            pair = await self._secret_pair(Ref("v1", "Secret", self._settings.namespace, certificate))
            was_trusted = await self._trust(config, pair)
            # Other API servers may still hold the bundle of before: a new certificate is served a pass later.
            if was_trusted or self._served is None:
                self._serve(pair)
        self.not_ready = None

    def _serve(self, pair: Pair) -> None:
        if pair == self._served:
            return
        certs.load(self.context, pair)
        self._served = pair
        ends = certs.not_after(pair)
        self._metrics.certificate(ends.timestamp())
        logger.info("serving a certificate that ends at %s", ends.isoformat())

    async def _config(self) -> Object:
        try:
            return await self._client.get(Ref(*_CONFIG, "", self._settings.config))
        except ApiError as error:
            if error.status == 404:
                raise NotYet(f"ValidatingWebhookConfiguration {self._settings.config} does not exist yet") from error
            raise

    async def _secret_pair(self, ref: Ref) -> Pair:
        """The pair in the Secret, made or renewed where it must be. Who loses a race reads what the winner wrote."""
        now = datetime.now(UTC)
        for _ in range(3):
            try:
                secret = await self._client.get(ref)
            except ApiError as error:
                if error.status == 404:
                    raise NotYet(f"{ref} does not exist: the chart makes it, empty (helm upgrade)") from error
                raise
            pair = Pair.from_secret(secret)
            reason = "there is none" if pair is None else certs.must_renew(pair, self._names, now)
            if pair is not None and reason is None:
                return pair
            fresh = certs.issue(self._names, now, pair)
            secret["data"] = (secret.get("data") or {}) | fresh.secret_data()
            try:
                await self._client.update(secret)
            except ApiError as error:
                if error.status != 409:
                    raise
                continue
            logger.info("made a certificate in %s because %s", ref, reason)
            return fresh
        raise NotYet(f"{ref} keeps changing under our hands")

    async def _trust(self, config: Object, pair: Pair) -> bool:
        """Put the bundle into every webhook of the configuration. Returns whether it was there already."""
        wanted = base64.b64encode(pair.bundle).decode()
        untrusting = [
            index
            for index, webhook in enumerate(config.get("webhooks") or ())
            if webhook["clientConfig"].get("caBundle") != wanted
        ]
        if not untrusting:
            return True
        version = config["metadata"]["resourceVersion"]
        operations: list[Object] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
        operations += [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted} for index in untrusting
        ]
        await self._client.json_patch(Ref.of(config), operations)
        logger.info("%s trusts the certificate now", Ref.of(config))
        return False

    async def _check_trusted(self) -> None:
        webhooks: Sequence[Object] = (await self._config()).get("webhooks") or ()
        untrusting = [each["name"] for each in webhooks if not each["clientConfig"].get("caBundle")]
        if untrusting:
            raise NotYet(f"{self._settings.config} has no caBundle yet for {', '.join(untrusting)}")


def _read(folder: Path) -> Pair:
    """Certificate files as cert-manager or a mounted Secret has them. Raises OSError."""
    return Pair((folder / certs.KEY_CERTIFICATE).read_bytes(), (folder / certs.KEY_PRIVATE).read_bytes(), b"")
