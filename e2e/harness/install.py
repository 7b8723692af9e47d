"""Installing the chart with real helm, from whatever state a killed run has left."""

import time
from dataclasses import dataclass
from pathlib import Path

from harness import objects
from harness.cluster import REPOSITORY, Cluster, CommandError
from harness.dump import SYSTEM

RELEASE = "kvbudget"
CHART = REPOSITORY / "charts" / "kvbudget"
IMAGE_VALUES = ("--set", "image.tag=dev", "--set", "worker.image.tag=dev")
"""The images that ``make images`` builds and ``make cluster-up`` loads."""

PROBE_CLASS = "no-such-class"
PROBE = objects.service("probe", SYSTEM, model={"source": {"hostPath": {"path": "/x"}}}, gpu={"class": PROBE_CLASS})
"""An LLMService that only the webhook refuses: its class does not exist."""


@dataclass(frozen=True, slots=True)
class Installed:
    """``first_answer`` is what the API server said to a dry-run create at once after helm had returned."""

    seconds: float
    first_answer: str


def install(cluster: Cluster) -> Installed:
    """Installs the chart into a namespace that enforces Pod Security "restricted"; an older release goes first."""
    uninstall(cluster)
    cluster.apply(objects.namespace(SYSTEM))
    started = time.monotonic()
    upgrade(cluster)
    seconds = time.monotonic() - started
    return Installed(seconds, webhook_answer(cluster))


def upgrade_arguments(chart: Path = CHART) -> tuple[str, ...]:
    """What ``upgrade`` calls helm with, as one would type it in the repository's root folder."""
    where = chart.relative_to(REPOSITORY) if chart.is_relative_to(REPOSITORY) else chart
    place = (str(where), "-n", SYSTEM, "--create-namespace")
    return ("upgrade", "--install", RELEASE, *place, "--wait", "--timeout", "6m", *IMAGE_VALUES)


def upgrade(cluster: Cluster, chart: Path = CHART) -> None:
    """``helm upgrade --install --wait``."""
    cluster.helm(*upgrade_arguments(chart))


def webhook_answer(cluster: Cluster) -> str:
    """What the API server says to a create that only the webhook can refuse; empty if it lets it pass."""
    try:
        cluster.apply(PROBE, dry_run=True)
    except CommandError as error:
        return error.output
    return ""


def uninstall(cluster: Cluster) -> None:
    """Removes the release; one that does not exist, or that is half installed, is no error. CRDs stay."""
    try:
        cluster.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait", "--ignore-not-found", "--timeout", "2m")
    except CommandError as error:
        if "not found" not in error.output:
            raise
