"""The Kubernetes API as dictionaries in and out: auth and TLS from the ``kubernetes`` package, no models, no discovery.

Blocking calls run in one bounded pool of threads. Errors are :class:`ApiError`; a network failure is one with status 0.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import kubernetes.client
import kubernetes.config
import urllib3.exceptions

from kvbudget.contract import API_VERSION, FIELD_MANAGER
from kvbudget.errors import InputError, KvbudgetError
from kvbudget_operator.objects import Object

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_PLURALS: Mapping[tuple[str, str], str] = {
    (API_VERSION, "LLMService"): "llmservices",
    (API_VERSION, "GPUClass"): "gpuclasses",
    ("apps/v1", "Deployment"): "deployments",
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("events.k8s.io/v1", "Event"): "events",
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"): "validatingwebhookconfigurations",
}


class ApiError(KvbudgetError):
    """An answer other than 2xx. ``status`` is HTTP's (0: no answer), ``reason`` Kubernetes' (``NotFound``, …)."""

    def __init__(self, status: int, reason: str, message: str, what: str) -> None:
        super().__init__(f"{what}: {status or 'no answer'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def is_namespace_leaving(self) -> bool:
        """Nothing can be made any more in a namespace that is being deleted."""
        return self.status == 403 and "because it is being terminated" in self.message


@dataclass(frozen=True, slots=True)
class Ref:
    """Address of an object. ``namespace`` empty: cluster-scoped."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "Ref":
        """Address of ``obj`` (apiVersion, kind and metadata must be there)."""
        metadata = obj["metadata"]
        return cls(obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), metadata["name"])

    @property
    def path(self) -> str:
        """URL path of the object.

        >>> Ref("apps/v1", "Deployment", "demo", "chat").path
        '/apis/apps/v1/namespaces/demo/deployments/chat'
        """
        return f"{self.collection}/{quote(self.name, safe='')}"

    @property
    def collection(self) -> str:
        """URL path of the objects of the kind in the namespace."""
        root = "/api" if "/" not in self.api_version else "/apis"
        namespace = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}/{self.api_version}{namespace}/{_PLURALS[self.api_version, self.kind]}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Client:
    """Make with :meth:`connect`; methods are safe to call concurrently."""

    def __init__(self, api: kubernetes.client.ApiClient, *, threads: int, timeout_seconds: float) -> None:
        self._api = api
        self._timeout_seconds = timeout_seconds
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="kube")

    @classmethod
    def connect(cls, *, threads: int, timeout_seconds: float, kubeconfig: str | None = None) -> "Client":
        """From the pod's service account, else from ``kubeconfig`` (default: $KUBECONFIG, ~/.kube/config). Raises
        InputError where neither is there."""
        configuration = kubernetes.client.Configuration()
        try:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        except kubernetes.config.ConfigException:
            try:
                kubernetes.config.load_kube_config(kubeconfig, client_configuration=configuration, persist_config=False)
            except (kubernetes.config.ConfigException, OSError) as error:
                raise InputError(
                    "KUBECONFIG", f"no service account of a pod and no usable kubeconfig ({error}): set KUBECONFIG"
                ) from error
        configuration.connection_pool_maxsize = threads
        configuration.retries = False
        return cls(kubernetes.client.ApiClient(configuration), threads=threads, timeout_seconds=timeout_seconds)

    async def get(self, ref: Ref, *, timeout_seconds: float | None = None) -> Object:
        """The live object."""
        return await self._call("GET", ref.path, str(ref), timeout_seconds=timeout_seconds)

    async def discover(self, api_version: str) -> Object:
        """The resources that the API server serves for a group and version (an APIResourceList)."""
        return await self._call("GET", f"/apis/{api_version}", f"discover {api_version}")

    async def create(self, obj: Object, *, dry_run: bool = False) -> Object:
        """POST; ``dry_run`` runs admission and validation only."""
        ref = Ref.of(obj)
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return await self._call("POST", ref.collection, f"create {ref}", query, obj)

    async def update(self, obj: Object) -> Object:
        """PUT; with ``metadata.resourceVersion`` it fails with 409 where the object changed meanwhile."""
        ref = Ref.of(obj)
        return await self._call("PUT", ref.path, f"update {ref}", {"fieldManager": FIELD_MANAGER}, obj)

    async def apply(self, obj: Object, *, subresource: str = "") -> Object:
        """Server-side apply of the full wanted object, by force: call it only for what is ours."""
        ref = Ref.of(obj)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call("PATCH", _sub(ref, subresource), f"apply {ref}", query, obj, content_type=APPLY)

    async def merge(self, ref: Ref, patch: Object, *, subresource: str = "") -> Object:
        """JSON merge patch."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("PATCH", _sub(ref, subresource), f"patch {ref}", query, patch, content_type=MERGE)

    async def json_patch(self, ref: Ref, operations: Sequence[Object]) -> Object:
        """JSON patch (RFC 6902); a failed ``test`` is an ApiError with status 422."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("PATCH", ref.path, f"patch {ref}", query, list(operations), content_type=JSON_PATCH)

    async def delete(self, ref: Ref, *, uid: str) -> None:
        """Delete the object with this uid; one that is gone, or is another by now, is left alone."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", ref.path, f"delete {ref}", body=body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def close(self) -> None:
        """Drop connections and threads; a call in flight finishes by its own timeout."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._api.close()

    async def _call(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        *,
        content_type: str = "application/json",
        timeout_seconds: float | None = None,
    ) -> Object:
        timeout = timeout_seconds or self._timeout_seconds
        call = (method, path, what, query or {}, body, content_type, timeout)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._request, *call)

    def _request(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, str],
        body: object,
        content_type: str,
        timeout_seconds: float,
    ) -> Object:
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        if body is not None:
            headers["Content-Type"] = content_type
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = self._api.rest_client.pool_manager.request(
                method, url, body=data, headers=headers, timeout=urllib3.Timeout(total=timeout_seconds), retries=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, type(error).__name__, str(error), what) from error
        return _decode(answer.status, answer.data, what)


def _sub(ref: Ref, subresource: str) -> str:
    return f"{ref.path}/{subresource}" if subresource else ref.path


def _decode(status: int, data: bytes, what: str) -> Object:
    """Raises ApiError for any answer that is no JSON object with a 2xx status."""
    try:
        decoded = json.loads(data)
    except ValueError:
        decoded = None
    if not 200 <= status < 300:
        known = decoded if isinstance(decoded, dict) else {}
        message = known.get("message") or data[:500].decode(errors="replace")
        raise ApiError(status, known.get("reason") or "Unknown", message, what)
    if not isinstance(decoded, dict):
        raise ApiError(status, "BadAnswer", "the answer is no JSON object", what)
    return decoded
