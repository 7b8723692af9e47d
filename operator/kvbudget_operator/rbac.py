"""Every Kubernetes permission that our processes use, beside the code that uses it. The chart's roles must equal these
tables (a test renders the chart and compares), and the API-server tests run the operator under exactly them.

``finalizers: update`` is what ``blockOwnerDeletion`` needs where the OwnerReferencesPermissionEnforcement plugin is on.
"""

from dataclasses import dataclass
from typing import Any

from kvbudget.contract import GROUP


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a Role. ``names`` empty: all objects of the resource."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    def manifest(self) -> dict[str, Any]:
        """The rule as in a Role's ``rules``."""
        rule: dict[str, Any] = {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


_READ = ("get", "list", "watch")
_APPLY = (*_READ, "create", "patch")
_APPLY_DELETE = (*_APPLY, "delete")

OPERATOR: tuple[Rule, ...] = (
    Rule(GROUP, "llmservices", (*_READ, "patch")),
    Rule(GROUP, "llmservices/status", ("patch",)),
    Rule(GROUP, "llmservices/scale", ("patch",)),
    Rule(GROUP, "llmservices/finalizers", ("update",)),
    Rule("apps", "deployments", _APPLY),
    Rule("apps", "deployments/scale", ("patch",)),
    Rule("apps", "replicasets", _READ),
    Rule("", "configmaps", _APPLY_DELETE),
    Rule("", "services", _APPLY),
    Rule("", "serviceaccounts", _APPLY),
    Rule("", "pods", (*_READ, "patch")),
    Rule("policy", "poddisruptionbudgets", _APPLY_DELETE),
    Rule("events.k8s.io", "events", ("create",)),
)
"""ClusterRole by default; a Role in each watched namespace when the operator is restricted to namespaces."""

OPERATOR_CLUSTER: tuple[Rule, ...] = (Rule(GROUP, "gpuclasses", _READ),)
"""ClusterRole always: the kind is cluster-scoped."""

OPERATOR_SCAN: tuple[Rule, ...] = (
    Rule("", "namespaces", ("list", "watch")),
    Rule("apiextensions.k8s.io", "customresourcedefinitions", ("list", "watch")),
)
"""ClusterRole, only where all namespaces are watched: kopf notices new namespaces and CRDs."""

VERIFY: tuple[Rule, ...] = (Rule(GROUP, "llmservices", ("create",)),)
"""Role in the release's namespace, for ``verify-webhook``: it only ever creates with dryRun."""


def admission_cluster(config: str) -> tuple[Rule, ...]:
    """ClusterRole of the admission replicas; ``config`` names the ValidatingWebhookConfiguration."""
    return (
        Rule(GROUP, "gpuclasses", ("get",)),
        Rule("admissionregistration.k8s.io", "validatingwebhookconfigurations", ("get", "patch"), (config,)),
    )


def admission_namespace(secret: str) -> tuple[Rule, ...]:
    """Role in the release's namespace: the certificate's Secret, which the chart makes: a right to create could not be
    held to one name."""
    return (Rule("", "secrets", ("get", "update"), (secret,)),)


def manifest(rules: tuple[Rule, ...]) -> list[dict[str, Any]]:
    """``rules`` of a Role or ClusterRole."""
    return [rule.manifest() for rule in rules]
