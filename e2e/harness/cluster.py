"""A handle on the kind cluster that ``make cluster-up`` made: kubectl and helm for what a user does, the API through
``kubectl proxy`` for what a test looks at."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from harness.waiting import eventually
from kvbudget.contract import LABEL_SERVICE, WORKER_PORT

Object = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget"
WEIGHTS = CACHE / "weights"
"""On this host; the GPU node sees the folder as ``NODE_WEIGHTS``."""
NODE_WEIGHTS = "/var/lib/kvbudget/weights"
API_TIMEOUT_S = 60
"""A host of two CPUs under load may keep a request waiting for long."""
GPU_NODE_LABEL = "nvidia.com/gpu.present"

_GROUPS = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "secrets": "/api/v1",
    "serviceaccounts": "/api/v1",
    "events": "/api/v1",
    "nodes": "/api/v1",
    "namespaces": "/api/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "llmservices": "/apis/kvbudget.dev/v1alpha1",
    "gpuclasses": "/apis/kvbudget.dev/v1alpha1",
    "validatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
}


class CommandError(Exception):
    """A command that failed; ``output`` is what it wrote, both streams."""

    def __init__(self, command: list[str], code: int, output: str) -> None:
        super().__init__(f"{' '.join(command)}: exit code {code}\n{output.strip()}")
        self.code = code
        self.output = output


class NoClusterError(Exception):
    """There is no cluster, or it does not answer. The text names the next command."""


class Cluster:
    """The cluster of ``kubeconfig``. A context manager: it holds one ``kubectl proxy``."""

    def __init__(self, kubeconfig: Path = CACHE / "kubeconfig") -> None:
        if not kubeconfig.exists():
            raise NoClusterError(f"no cluster: {kubeconfig} does not exist. Next: make cluster-up")
        tools = f"{CACHE / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": tools}
        self._proxy: subprocess.Popen[str] | None = None
        self.api = httpx.Client()

    def __enter__(self) -> Self:
        self._proxy = subprocess.Popen(
            ["kubectl", "proxy", "--port=0"],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        line = self._proxy.stdout.readline() if self._proxy.stdout else ""
        if "127.0.0.1:" not in line:
            self.close()
            raise NoClusterError(f"kubectl proxy did not start: {line.strip()}. Next: make cluster-up")
        self.api = httpx.Client(
            base_url=f"http://{line.strip().rsplit(' ', 1)[-1]}", timeout=API_TIMEOUT_S, trust_env=False
        )
        try:
            self.api.get("/readyz").raise_for_status()
        except httpx.HTTPError as error:
            self.close()
            raise NoClusterError(f"the API server does not answer ({error}). Next: make cluster-up") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the proxy."""
        self.api.close()
        if self._proxy is not None:
            self._proxy.terminate()
            self._proxy.wait(timeout=10)
            self._proxy = None

    # What a user does.

    def run(self, *command: str, stdin: str | None = None, timeout_s: float = 300) -> str:
        """Runs ``command`` against the cluster; returns its output, both streams. Raises CommandError."""
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                env=self._env,
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise NoClusterError(f"{command[0]} is not installed. Next: make cluster-up") from error
        except subprocess.TimeoutExpired as error:
            raise CommandError(list(command), 124, f"no end after {timeout_s:.0f} s") from error
        if done.returncode != 0:
            raise CommandError(list(command), done.returncode, done.stdout)
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 300) -> str:
        return self.run("kubectl", *arguments, stdin=stdin, timeout_s=timeout_s)

    def helm(self, *arguments: str, timeout_s: float = 400) -> str:
        return self.run("helm", *arguments, timeout_s=timeout_s)

    def apply(self, *objects: Object, dry_run: bool = False) -> str:
        """``kubectl apply`` of objects. Raises CommandError with the API server's refusal."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.kubectl("apply", *(["--dry-run=server"] if dry_run else []), "-f", "-", stdin=text)

    def delete(
        self, resource: str, name: str, namespace: str | None = None, *, wait: bool = True, timeout_s: float = 300
    ) -> None:
        """Deletes; an object that is not there is no error."""
        where = ["-n", namespace] if namespace else []
        waiting = f"--wait={str(wait).lower()}"
        self.kubectl("delete", resource, name, *where, "--ignore-not-found", waiting, timeout_s=timeout_s)

    def patch(self, resource: str, name: str, namespace: str, change: Object) -> None:
        """JSON merge patch."""
        self.kubectl("patch", resource, name, "-n", namespace, "--type=merge", "-p", json.dumps(change))

    # What a test looks at.

    def get(self, resource: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, or None where there is none."""
        answer = self.api.get(f"{_path(resource, namespace)}/{name}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        answer.raise_for_status()
        found: Object = answer.json()
        return found

    def find(self, resource: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        answer = self.api.get(_path(resource, namespace), params={"labelSelector": selector})
        answer.raise_for_status()
        items: list[Object] = answer.json()["items"]
        return items

    def pods_of(self, service: str, namespace: str) -> list[Object]:
        """Worker pods of an LLMService, those that are going away included."""
        return self.find("pods", namespace, f"{LABEL_SERVICE}={service}")

    def metrics(self, pod: str, namespace: str, port: int = WORKER_PORT) -> Mapping[str, float]:
        """A pod's samples by name, labels summed. Raises httpx.HTTPError where the pod does not answer."""
        answer = self.api.get(f"{_path('pods', namespace)}/{pod}:{port}/proxy/metrics")
        answer.raise_for_status()
        samples: dict[str, float] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
        return samples

    def condition(self, service: str, namespace: str, kind: str) -> Object | None:
        """The condition ``kind`` of an LLMService, or None."""
        found = self.get("llmservices", service, namespace) or {}
        conditions: list[Object] = found.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), None)

    def wait_condition(self, service: str, namespace: str, kind: str, status: str, timeout_s: float) -> Object:
        """Waits until the condition has this status, and was written for the object as it is now."""

        def check() -> Object | None:
            found = self.get("llmservices", service, namespace)
            assert found is not None, f"LLMService {service} does not exist"
            conditions = found.get("status", {}).get("conditions", [])
            text = ", ".join(f"{c['type']}={c['status']} ({c['reason']}: {c['message']})" for c in conditions)
            condition = next((c for c in conditions if c["type"] == kind), None)
            assert condition is not None, f"no condition {kind}; there are: {text or 'none'}"
            observed = condition.get("observedGeneration", found["metadata"]["generation"])
            assert condition["status"] == status, text
            assert observed == found["metadata"]["generation"], f"{kind} is of generation {observed}"
            return dict(condition)

        return eventually(check, timeout_s, f"{kind}={status} of {namespace}/{service}")

    def node_address(self) -> str:
        """An address of a node that this host reaches."""
        addresses = self.find("nodes")[0]["status"]["addresses"]
        return str(next(a["address"] for a in addresses if a["type"] == "InternalIP"))

    def open_service(self, service: str, namespace: str) -> str:
        """Puts a NodePort in front of a Service's pods, so that load from this host is spread as in the cluster, and
        returns its URL."""
        plain = self.get("services", service, namespace)
        if plain is None:
            raise CommandError(["open_service", service], 1, f"Service {namespace}/{service} does not exist")
        name = f"{service}-open"
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "type": "NodePort",
                    "selector": plain["spec"]["selector"],
                    "ports": [{"name": "http", "port": WORKER_PORT, "targetPort": WORKER_PORT}],
                },
            }
        )
        opened = self.get("services", name, namespace) or {}
        return f"http://{self.node_address()}:{opened['spec']['ports'][0]['nodePort']}"


def _path(resource: str, namespace: str | None) -> str:
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{_GROUPS[resource]}{scope}/{resource}"
