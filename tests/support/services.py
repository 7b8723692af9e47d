"""LLMServices in a namespace of a real API server, and what the missing controllers would do to them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.kubeapi import ApiError, KubeAPI, Object, eventually
from support.objects import gpu_class, service

GROUP = "/apis/kvbudget.dev/v1alpha1"
SECONDS = 60
"""How long anything may take that must happen; only a failure takes so long."""


def controller(owner: Object, kind: str) -> Object:
    """The reference by which what ``owner`` (an object of the group apps) makes belongs to it."""
    metadata = owner["metadata"]
    return {"apiVersion": "apps/v1", "kind": kind, "name": metadata["name"], "uid": metadata["uid"], "controller": True}


@dataclass
class Cluster:
    """``klass`` names the test's own GPUClass."""

    api: KubeAPI
    namespace: str
    klass: str

    def path(self, kind: str, name: str = "") -> str:
        bases = {
            "llmservices": GROUP,
            "deployments": "/apis/apps/v1",
            "replicasets": "/apis/apps/v1",
            "poddisruptionbudgets": "/apis/policy/v1",
            "events": "/apis/events.k8s.io/v1",
        }
        return f"{bases.get(kind, '/api/v1')}/namespaces/{self.namespace}/{kind}{f'/{name}' if name else ''}"

    def find(self, kind: str, name: str) -> Object | None:
        try:
            found: Object = self.api.get(self.path(kind, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def all(self, kind: str) -> list[Object]:
        found: list[Object] = self.api.get(self.path(kind))["items"]
        return found

    def make_class(self, **changes: Any) -> Object:
        made = gpu_class(self.klass, spec__memory="1720Mi", **changes)
        return self.api.apply(f"{GROUP}/gpuclasses/{self.klass}", made)

    def delete_class(self) -> None:
        self.api.delete(f"{GROUP}/gpuclasses/{self.klass}")

    def make(self, name: str = "chat", **changes: Any) -> Object:
        """Creates or replaces (server-side apply) a small service of SmolLM2."""
        made = service(name, spec__gpu__class=self.klass, spec__model__name="SmolLM2-135M-Instruct", **changes)
        return self.api.apply(self.path("llmservices", name), made)

    def condition(self, kind: str, name: str = "chat") -> Object:
        """One condition; empty where it is absent."""
        found = self.find("llmservices", name)
        conditions = (found or {}).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def until(self, check: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """The first true value of ``check``."""
        return eventually(check, seconds, lambda: str([each.get("status") for each in self.all("llmservices")]))

    def until_condition(self, kind: str, status: str, name: str = "chat", reason: str = "") -> Object:
        def met() -> Object | None:
            found = self.condition(kind, name)
            is_met = found.get("status") == status and reason in ("", found.get("reason"))
            return found if is_met else None

        met_condition: Object = self.until(met)
        return met_condition

    def until_deployed(self, name: str = "chat") -> Object:
        deployment: Object = self.until(lambda: self.find("deployments", name))
        return deployment

    def replica_set(self, name: str, labels: Object, service: str = "chat") -> Object:
        """What the Deployment's controller would make for pods with these labels; the one that is there already."""
        owner = controller(self.until_deployed(service), "Deployment")
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "worker", "image": "x"}]}}
        return self.api.apply(
            self.path("replicasets", name),
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
                "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
            },
        )

    def roll_out(self, name: str = "chat", ready: int | None = None) -> None:
        """What the Deployment's controller would write once all of its pods (or ``ready`` of them) are ready."""
        deployment = self.find("deployments", name)
        assert deployment is not None
        replicas = deployment["spec"]["replicas"]
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": replicas,
            "updatedReplicas": replicas,
            "readyReplicas": replicas if ready is None else ready,
            "availableReplicas": replicas if ready is None else ready,
        }
        self.api.merge(f"{self.path('deployments', name)}/status", {"status": status})
