"""The webhook as the API server calls it: over TLS on loopback, with a certificate that the processes make."""

import base64
import json
import ssl
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import urllib3

from kvbudget_operator import certs, rbac
from kvbudget_operator.client import Client
from kvbudget_operator.keeper import Keeper
from kvbudget_operator.metrics import AdmissionMetrics
from kvbudget_operator.settings import AdmissionSettings
from support.controlplane import ControlPlane
from support.kubeapi import ApiError, KubeAPI, Object, eventually
from support.kubeprocess import Process, free_port, service_account
from support.objects import gpu_class
from support.services import GROUP, Cluster

pytestmark = pytest.mark.apiserver

CONFIGS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@dataclass
class Webhook:
    """A webhook configuration that only concerns the test's namespace and labelled classes, and the empty Secret that
    the chart makes."""

    api: KubeAPI
    namespace: str
    kubeconfig: Path
    folder: Path
    name: str
    secret: str = "cert"
    port: int = field(default_factory=free_port)

    def configure(self) -> None:
        webhooks = []
        for resource in ("llmservices", "gpuclasses"):
            rule = {"apiGroups": ["kvbudget.dev"], "apiVersions": ["v1alpha1"], "resources": [resource]}
            webhook: Object = {
                "name": f"{resource}.kvbudget.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 5,
                "clientConfig": {"url": f"https://localhost:{self.port}/validate-{resource}"},
                "rules": [{**rule, "operations": ["CREATE", "UPDATE"]}],
            }
            label = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
            if resource == "gpuclasses":
                label = {"matchLabels": {"test": self.name}}
            webhook["namespaceSelector" if resource == "llmservices" else "objectSelector"] = label
            webhooks.append(webhook)
        self.api.create(CONFIGS, {"metadata": {"name": self.name}, "webhooks": webhooks})

    def process(self, *, port: int | None = None) -> Process:
        env = {
            "POD_NAMESPACE": self.namespace,
            "KVBUDGET_WEBHOOK_HOST": "127.0.0.1",
            "KVBUDGET_WEBHOOK_PORT": str(port or self.port),
            "KVBUDGET_WEBHOOK_SERVICE": "svc",
            "KVBUDGET_WEBHOOK_CONFIG": self.name,
            "KVBUDGET_WEBHOOK_SECRET": self.secret,
            "KVBUDGET_WEBHOOK_EXTRA_SANS": "localhost",
        }
        return Process(["admission"], self.kubeconfig, self.folder, env)

    def settings(self) -> AdmissionSettings:
        return AdmissionSettings(
            self.namespace, "svc", self.name, self.secret, extra_sans=("localhost",), port=self.port
        )

    def secret_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets/{self.secret}"

    def bundles(self) -> set[bytes]:
        found = self.api.get(f"{CONFIGS}/{self.name}")["webhooks"]
        return {base64.b64decode(each["clientConfig"].get("caBundle") or "") for each in found}


@pytest.fixture
def webhook(apiserver: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Webhook]:
    name = f"kvbudget-{uuid.uuid4().hex[:8]}"
    kubeconfig = service_account(
        apiserver,
        tmp_path,
        namespace,
        cluster=rbac.admission_cluster(name),
        namespaced={namespace: rbac.admission_namespace("cert")},
    )
    made = Webhook(apiserver.api, namespace, kubeconfig, tmp_path, name)
    secrets = made.secret_path().rsplit("/", 1)[0]
    apiserver.api.create(secrets, {"metadata": {"name": made.secret}, "type": "Opaque"})
    yield made
    try:
        apiserver.api.delete(f"{CONFIGS}/{name}")
    except ApiError as error:
        if error.status != 404:
            raise


@pytest.fixture
def start() -> Iterator[Callable[[Process], Process]]:
    made: list[Process] = []

    def run(process: Process) -> Process:
        made.append(process.start())
        return process

    yield run
    for process in made:
        process.kill()


@pytest.fixture
def serving(webhook: Webhook, start: Callable[[Process], Process], cluster: Cluster) -> Process:
    """A webhook that the API server asks."""
    webhook.configure()
    process = start(webhook.process()).until_ready()
    cluster.until(lambda: _is_asked(cluster))
    return process


def _is_asked(cluster: Cluster) -> bool:
    """The API server learns of a new configuration a moment after it is written."""
    try:
        cluster.api.create(cluster.path("llmservices"), _service(cluster, klass="no-such"), dryRun="All")
    except ApiError as error:
        return "no-such" in error.message
    return False


def _service(cluster: Cluster, klass: str = "", **spec: object) -> Object:
    model = {"name": "SmolLM2-135M-Instruct", "source": {"pvc": {"claimName": "w"}}}
    return {
        "apiVersion": "kvbudget.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "chat", "namespace": cluster.namespace},
        "spec": {"model": model, "gpu": {"class": klass or cluster.klass}, **spec},
    }


@pytest.mark.smoke
def test_what_cannot_fit_is_refused_with_its_path_and_arithmetic(cluster: Cluster, serving: Process) -> None:
    cluster.make_class()
    model = {"name": "meta-llama/Llama-3.1-8B-Instruct", "source": {"pvc": {"claimName": "w"}}}
    with pytest.raises(ApiError) as refused:
        cluster.api.create(cluster.path("llmservices"), _service(cluster, model=model, maxModelLen=131072))
    assert refused.value.status == 422
    assert "denied the request: spec." in refused.value.message
    assert cluster.klass in refused.value.message
    assert any(path.startswith("spec.") for path in refused.value.causes)
    assert cluster.find("llmservices", "chat") is None


def test_what_fits_is_admitted_and_warnings_come_along(cluster: Cluster, serving: Process) -> None:
    cluster.make_class()
    service = _service(cluster, replicas=1, scaling={"maxReplicas": 2})
    cluster.api.create(cluster.path("llmservices"), service)
    assert any("spec.replicas" in warning for warning in cluster.api.warnings)


def test_an_update_is_refused_only_for_what_it_changes(cluster: Cluster, serving: Process) -> None:
    cluster.make_class()
    path = cluster.path("llmservices", "chat")
    cluster.api.create(cluster.path("llmservices"), _service(cluster, maxModelLen=4096))
    cluster.delete_class()
    cluster.api.merge(path, {"metadata": {"labels": {"team": "a"}}})
    cluster.api.merge(path, {"spec": {"drain": {"timeoutSeconds": 30}}})
    with pytest.raises(ApiError, match="another"):
        cluster.api.merge(path, {"spec": {"gpu": {"class": "another"}}})
    cluster.api.merge(path, {"metadata": {"finalizers": ["test.kvbudget.dev/hold"]}})
    cluster.api.delete(path)
    cluster.api.merge(path, {"metadata": {"finalizers": None}})
    assert cluster.find("llmservices", "chat") is None


def test_a_class_with_a_bad_quantity_is_refused(cluster: Cluster, serving: Process, webhook: Webhook) -> None:
    bad = gpu_class(cluster.klass, spec__memory="1.5m")
    bad["metadata"]["labels"] = {"test": webhook.name}
    with pytest.raises(ApiError, match=r"spec\.memory"):
        cluster.api.create(f"{GROUP}/gpuclasses", bad)


def test_a_body_that_is_no_review_gets_words_not_a_traceback(serving: Process, webhook: Webhook) -> None:
    pair = certs.Pair.from_secret(webhook.api.get(webhook.secret_path()))
    assert pair is not None
    for body in (b"", b"{", b"[]", b'{"request": {}}', b"[" * 100_000, b"\xff\xfe"):
        status, text = _post(webhook, pair.bundle, body)
        assert (status, text[:24]) == (400, "cannot read the request:"), body[:20]
    review = {"request": {"uid": "1", "operation": "CREATE", "kind": {"kind": "LLMService"}, "object": {"spec": 7}}}
    status, text = _post(webhook, pair.bundle, json.dumps(review).encode())
    assert status == 200
    response = json.loads(text)["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 422)
    assert "spec: must be an object" in response["status"]["message"]


def test_two_replicas_that_start_at_once_share_one_certificate(
    webhook: Webhook, start: Callable[[Process], Process]
) -> None:
    webhook.configure()
    ports = (webhook.port, free_port())
    for process in [start(webhook.process(port=port)) for port in ports]:
        process.until_ready()
    secret = webhook.api.get(webhook.secret_path())
    pair = certs.Pair.from_secret(secret)
    assert pair is not None
    assert webhook.bundles() == {pair.bundle}
    served = {ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port))) for port in ports}
    assert served == {ssl.PEM_cert_to_DER_cert(pair.certificate.decode())}


def test_a_restart_keeps_the_certificate_and_the_secret_of_the_chart(
    webhook: Webhook, start: Callable[[Process], Process]
) -> None:
    webhook.configure()
    made = webhook.api.get(webhook.secret_path())
    assert "data" not in made
    start(webhook.process()).until_ready().kill()
    filled = webhook.api.get(webhook.secret_path())
    assert filled["metadata"]["uid"] == made["metadata"]["uid"]
    start(webhook.process()).until_ready()
    assert webhook.api.get(webhook.secret_path())["data"] == filled["data"]


def test_it_is_not_ready_before_the_api_server_trusts_it(webhook: Webhook, start: Callable[[Process], Process]) -> None:
    process = start(webhook.process())
    eventually(lambda: webhook.name in process.get("/readyz")[1], 60)
    status, text = process.get("/readyz")
    assert (status, "does not exist yet" in text) == (503, True)
    webhook.configure()
    process.until_ready()
    assert process.terminate() == 0


def test_a_secret_that_is_gone_is_told_with_who_makes_it(webhook: Webhook, start: Callable[[Process], Process]) -> None:
    """Not made by us: the right to create Secrets cannot be held to one name."""
    webhook.configure()
    webhook.api.delete(webhook.secret_path())
    process = start(webhook.process())
    eventually(lambda: "helm upgrade" in process.get("/readyz")[1], 60)
    webhook.api.create(webhook.secret_path().rsplit("/", 1)[0], {"metadata": {"name": webhook.secret}})
    process.until_ready()


async def test_a_certificate_near_its_end_is_renewed_while_both_are_trusted(
    webhook: Webhook,
) -> None:
    webhook.configure()
    client = Client.connect(threads=2, timeout_seconds=10, kubeconfig=str(webhook.kubeconfig))
    keeper = Keeper(webhook.settings(), client, AdmissionMetrics())
    await keeper.check()
    assert keeper.not_ready is None
    names = certs.service_names("svc", webhook.namespace, ("localhost",))
    ending = certs.issue(names, datetime.now(UTC) - certs.VALID + timedelta(days=30))
    webhook.api.merge(webhook.secret_path(), {"data": ending.secret_data()})
    await keeper.check()
    renewed = certs.Pair.from_secret(webhook.api.get(webhook.secret_path()))
    assert renewed is not None
    assert renewed.certificate != ending.certificate
    assert webhook.bundles() == {renewed.bundle}
    assert ending.bundle in renewed.bundle
    assert _serial(keeper) != _leaf(renewed), "the new one is served only after its bundle was in place for a pass"
    await keeper.check()
    assert _serial(keeper) == _leaf(renewed)
    client.close()


def test_verify_succeeds_only_when_the_webhook_refused(
    apiserver: ControlPlane, webhook: Webhook, start: Callable[[Process], Process], cluster: Cluster, tmp_path: Path
) -> None:
    kubeconfig = service_account(apiserver, tmp_path, webhook.namespace, namespaced={webhook.namespace: rbac.VERIFY})
    arguments = ["verify-webhook", "--namespace", webhook.namespace]
    waiting = start(Process([*arguments, "--timeout-seconds", "90"], kubeconfig, tmp_path))
    hopeless = start(Process([*arguments, "--timeout-seconds", "1"], kubeconfig, tmp_path))
    assert hopeless.wait(60) == 1
    assert "admitted an impossible service without asking the webhook" in hopeless.text()
    webhook.configure()
    start(webhook.process()).until_ready()
    assert waiting.wait(60) == 0


def test_verify_says_at_once_that_it_may_not_ask(
    apiserver: ControlPlane, namespace: str, start: Callable[[Process], Process], tmp_path: Path
) -> None:
    kubeconfig = service_account(apiserver, tmp_path, namespace)
    process = start(Process(["verify-webhook", "--namespace", namespace], kubeconfig, tmp_path))
    assert process.wait(60) == 1
    assert "not allowed to create LLMServices" in process.text()


def test_a_port_in_use_is_one_line(webhook: Webhook, start: Callable[[Process], Process], serving: Process) -> None:
    second = start(webhook.process())
    assert second.wait(60) == 2
    assert "KVBUDGET_WEBHOOK_PORT: cannot listen on 127.0.0.1" in second.text()
    assert "Traceback" not in second.text()


def _leaf(pair: certs.Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())


def _serial(keeper: Keeper) -> bytes:
    """The certificate that the context serves, from a handshake in memory."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    ends = [ssl.MemoryBIO() for _ in range(2)]
    here = client.wrap_bio(ends[0], ends[1], server_side=False)
    there = keeper.context.wrap_bio(ends[1], ends[0], server_side=True)
    for _ in range(4):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = here.getpeercert(binary_form=True)
    assert found is not None
    return found


def _post(webhook: Webhook, bundle: bytes, body: bytes) -> tuple[int, str]:
    context = ssl.create_default_context(cadata=bundle.decode())
    pool = urllib3.PoolManager(ssl_context=context, retries=False)
    answer = pool.request("POST", f"https://localhost:{webhook.port}/validate-llmservices", body=body)
    return answer.status, answer.data.decode()
