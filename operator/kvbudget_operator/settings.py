"""What the environment tells the operator and admission processes. Read once, at start."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvbudget.errors import InputError

ENV_WORKER_IMAGE = "KVBUDGET_WORKER_IMAGE"
ENV_WORKER_PULL_POLICY = "KVBUDGET_WORKER_PULL_POLICY"
ENV_WORKER_PULL_SECRETS = "KVBUDGET_WORKER_PULL_SECRETS"
ENV_NAMESPACES = "KVBUDGET_NAMESPACES"
ENV_HEALTH_PORT = "KVBUDGET_HEALTH_PORT"
ENV_HEALTH_HOST = "KVBUDGET_HEALTH_HOST"
ENV_SCRAPE_SECONDS = "KVBUDGET_SCRAPE_SECONDS"
ENV_LOG_FORMAT = "KVBUDGET_LOG_FORMAT"
ENV_POD_NAME = "POD_NAME"
ENV_POD_NAMESPACE = "POD_NAMESPACE"
ENV_WEBHOOK_PORT = "KVBUDGET_WEBHOOK_PORT"
ENV_WEBHOOK_HOST = "KVBUDGET_WEBHOOK_HOST"
ENV_WEBHOOK_SERVICE = "KVBUDGET_WEBHOOK_SERVICE"
ENV_WEBHOOK_CONFIG = "KVBUDGET_WEBHOOK_CONFIG"
ENV_WEBHOOK_SECRET = "KVBUDGET_WEBHOOK_SECRET"
ENV_WEBHOOK_CERT_DIR = "KVBUDGET_WEBHOOK_CERT_DIR"
ENV_WEBHOOK_EXTRA_SANS = "KVBUDGET_WEBHOOK_EXTRA_SANS"

RESYNC_SECONDS = 300.0
"""Every service is reconciled at least this often, whatever events say."""
DEMAND_SECONDS = 15.0
"""Shortest time between two writes of ``status.demand`` of one service."""
RECONCILE_WORKERS = 4
SCALING_WRITES = 3
"""Services whose replicas are changed at the same time."""
CLIENT_THREADS = 8
"""One for each of the two above, and one for an event."""
REQUEST_TIMEOUT_SECONDS = 20.0
EXIT_TIMEOUT_SECONDS = 25.0
"""Below the pod's grace period of 30 s."""


@dataclass(frozen=True, slots=True)
class WorkerImage:
    """What runs in every worker pod."""

    image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """``namespaces`` empty: all of the cluster."""

    worker: WorkerImage
    namespaces: tuple[str, ...] = ()
    health_host: str = "0.0.0.0"
    health_port: int = 8080
    scrape_seconds: float = 5.0
    pod_name: str = "kvbudget-operator"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "OperatorSettings":
        """Raises InputError naming the variable."""
        image = env.get(ENV_WORKER_IMAGE, "")
        if not image:
            raise InputError(
                ENV_WORKER_IMAGE, "not set: name the image that worker pods run (chart value worker.image)"
            )
        return cls(
            worker=WorkerImage(
                image,
                _choice(env, ENV_WORKER_PULL_POLICY, "IfNotPresent", ("IfNotPresent", "Always", "Never")),
                _list(env, ENV_WORKER_PULL_SECRETS),
            ),
            namespaces=_list(env, ENV_NAMESPACES),
            health_host=env.get(ENV_HEALTH_HOST, "0.0.0.0"),
            health_port=_port(env, ENV_HEALTH_PORT, 8080),
            scrape_seconds=_seconds(env, ENV_SCRAPE_SECONDS, 5.0),
            pod_name=env.get(ENV_POD_NAME, "kvbudget-operator"),
        )


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """``certificate`` a folder: it comes from files there (``tls.crt``, ``tls.key``) and somebody else (cert-manager,
    the user) puts the caBundle into the webhook configuration. A text: it is self-signed, and kept in the Secret of
    that name."""

    namespace: str
    service: str
    config: str
    certificate: Path | str
    extra_sans: tuple[str, ...] = ()
    host: str = "0.0.0.0"
    port: int = 9443
    health_host: str = "0.0.0.0"
    health_port: int = 8080

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "AdmissionSettings":
        """Raises InputError naming the variable."""
        folder = env.get(ENV_WEBHOOK_CERT_DIR, "")
        kept = f"the Secret that keeps the certificate, or {ENV_WEBHOOK_CERT_DIR}: a folder that has it"
        return cls(
            namespace=_required(env, ENV_POD_NAMESPACE, "the namespace of this pod (downward API metadata.namespace)"),
            service=_required(env, ENV_WEBHOOK_SERVICE, "the Service by which the API server reaches this pod"),
            config=_required(env, ENV_WEBHOOK_CONFIG, "the ValidatingWebhookConfiguration that names that Service"),
            certificate=Path(folder) if folder else _required(env, ENV_WEBHOOK_SECRET, kept),
            extra_sans=_list(env, ENV_WEBHOOK_EXTRA_SANS),
            host=env.get(ENV_WEBHOOK_HOST, "0.0.0.0"),
            port=_port(env, ENV_WEBHOOK_PORT, 9443),
            health_host=env.get(ENV_HEALTH_HOST, "0.0.0.0"),
            health_port=_port(env, ENV_HEALTH_PORT, 8080),
        )


def is_json_log(env: Mapping[str, str]) -> bool:
    """Whether log lines are JSON; every command of ours has it. Raises InputError naming the variable."""
    return _choice(env, ENV_LOG_FORMAT, "text", ("text", "json")) == "json"


def _required(env: Mapping[str, str], name: str, what: str) -> str:
    value = env.get(name, "")
    if not value:
        raise InputError(name, f"not set: {what}")
    return value


def _list(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in env.get(name, "").split(",") if part.strip())


def _choice(env: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name) or default
    if value not in allowed:
        raise InputError(name, f"{value!r} is none of {', '.join(allowed)}")
    return value


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise InputError(name, f"{text!r} is no port: give a number from 1 to 65535")
    return int(text)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise InputError(name, f"{text!r} is no time: give seconds from 0.1 to 3600")
    return value
