"""Names and labels of what we make for one LLMService. Pure; every name is a function of the service's name.

The schema holds an LLMService's name to a DNS label of at most 63 characters: a label value and a Service name
as it is.
"""

from collections.abc import Mapping

from kvbudget.contract import LABEL_SERVICE

LABEL_COMPONENT = "app.kubernetes.io/component"
COMPONENT_WORKER = "worker"
MANAGED_BY = "kvbudget-operator"


def config_map(service: str, plan_hash: str) -> str:
    """Name of the ConfigMap that holds the Plan with this hash."""
    return f"{service}-plan-{plan_hash}"


def service_account(service: str) -> str:
    """Name of the workers' ServiceAccount."""
    return f"{service}-worker"


def selector(service: str) -> dict[str, str]:
    """Labels that select the worker pods. They never change for a service: a Deployment's selector is immutable."""
    return {LABEL_SERVICE: service, LABEL_COMPONENT: COMPONENT_WORKER}


def selector_text(service: str) -> str:
    """The same as ``status.selector`` wants it.

    >>> selector_text("chat")
    'kvbudget.dev/llmservice=chat,app.kubernetes.io/component=worker'
    """
    return ",".join(f"{key}={value}" for key, value in selector(service).items())


def labels(service: str) -> Mapping[str, str]:
    """Labels of every child and of the pods."""
    return {
        "app.kubernetes.io/name": "kvbudget-worker",
        "app.kubernetes.io/instance": service,
        "app.kubernetes.io/part-of": "kvbudget",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        **selector(service),
    }
