"""Everything that one needs to understand a failure, as files."""

import re
from pathlib import Path

import httpx

from harness.cluster import REPOSITORY, Cluster, CommandError

DUMPS = REPOSITORY / "build" / "e2e-dump"
SYSTEM = "kvbudget-system"

_QUESTIONS = {
    "events.txt": ("get", "events", "--sort-by=.lastTimestamp"),
    "objects.txt": ("get", "llmservices,deployments,replicasets,pods,services,pdb,pvc,configmaps", "-o", "wide"),
    "llmservices.yaml": ("get", "llmservices", "-o", "yaml"),
    "deployments.yaml": ("get", "deployments", "-o", "yaml"),
    "pods.yaml": ("get", "pods", "-o", "yaml"),
    "configmaps.yaml": ("get", "configmaps", "-o", "yaml"),
}


def dump(cluster: Cluster, title: str, *namespaces: str) -> Path:
    """Writes events, objects and logs of ``namespaces`` and of the operator's below ``DUMPS/title``; never raises for
    what cannot be read, since a dump of half is better than none."""
    folder = DUMPS / re.sub(r"[^A-Za-z0-9_.-]+", "-", title)
    _write(cluster, folder / "gpuclasses.yaml", "get", "gpuclasses", "-o", "yaml")
    _write(cluster, folder / "nodes.txt", "describe", "nodes")
    for namespace in dict.fromkeys((*namespaces, SYSTEM)):
        for file, arguments in _QUESTIONS.items():
            _write(cluster, folder / namespace / file, "-n", namespace, *arguments)
        for name in _pods(cluster, namespace):
            for file, extra in ((f"{name}.log", ()), (f"{name}.previous.log", ("--previous",))):
                _write(cluster, folder / namespace / file, "-n", namespace, "logs", name, "--all-containers", *extra)
    return folder


def _pods(cluster: Cluster, namespace: str) -> list[str]:
    try:
        return [pod["metadata"]["name"] for pod in cluster.find("pods", namespace)]
    except httpx.HTTPError:
        return []


def _write(cluster: Cluster, path: Path, *arguments: str) -> None:
    try:
        text = cluster.kubectl(*arguments, timeout_s=30)
    except CommandError as error:
        if path.name.endswith(".previous.log"):
            return
        text = str(error)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
