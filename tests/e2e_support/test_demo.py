"""What `make demo` tells its reader to type is what works."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import demo
from harness.cluster import Cluster
from harness.install import upgrade, upgrade_arguments

ROOT = Path(__file__).resolve().parent.parent.parent


class Told(Cluster):
    """Keeps what it is told; holds ``found`` by resource."""

    def __init__(self, **found: list[Any]) -> None:
        self.commands: list[str] = []
        self.found = found

    def run(self, *command: str, stdin: str | None = None, timeout_s: float = 300) -> str:
        self.commands.append(" ".join(command))
        return ""

    def get(self, resource: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        return next((each for each in self.found.get(resource, []) if each["metadata"]["name"] == name), None)

    def find(self, resource: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        return self.found.get(resource, [])

    def pods_of(self, service: str, namespace: str) -> list[dict[str, Any]]:
        return [{}]


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **more}


def test_helm_is_called_with_what_is_printed() -> None:
    cluster = Told()
    upgrade(cluster)
    assert cluster.commands == [f"helm {' '.join(upgrade_arguments())}"]
    assert "upgrade --install kvbudget charts/kvbudget -n kvbudget-system " in cluster.commands[0]
    assert "--set worker.image.tag=dev" in cluster.commands[0]


def test_an_earlier_demo_is_removed_before_its_namespace() -> None:
    crd = named("llmservices.kvbudget.dev")
    cluster = Told(namespaces=[named(demo.NAMESPACE)], customresourcedefinitions=[crd])
    demo.clean(cluster)
    assert [" ".join(command.split()[1:3]) for command in cluster.commands] == [
        "delete llmservices",
        "delete namespace",
        "delete persistentvolume",
    ]


def test_the_printed_removal_names_all_that_the_demo_made(capsys: pytest.CaptureFixture[str]) -> None:
    demo.closing("http://10.0.0.1:30000")
    told = capsys.readouterr().out
    assert "curl -s http://10.0.0.1:30000/v1/chat/completions" in told
    order = [
        "delete llm ",
        "wait --for=delete pod",
        "delete -f examples/smollm2-volume.yaml",
        "helm uninstall",
        "delete crd",
    ]
    assert sorted(order, key=told.index) == order
    files = set(re.findall(r"delete -f (\S+)", told))
    made = {each["kind"] for file in files for each in yaml.safe_load_all((ROOT / file).read_text())}
    assert made == {"Namespace", "PersistentVolume", "PersistentVolumeClaim", "GPUClass"}


def test_scaling_decisions_are_told_the_oldest_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    decisions = [
        {"time": "12:01", "current": 2, "desired": 1, "message": "less"},
        {"time": "12:00", "current": 1, "desired": 2, "message": "more"},
    ]
    service = named(demo.SERVICE, spec={"replicas": 1}, status={"decisions": decisions})
    demo.show_scaling(Told(llmservices=[service]), demo.Facts())
    told = capsys.readouterr().out
    assert told.index("1 -> 2  more") < told.index("2 -> 1  less")
