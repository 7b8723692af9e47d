"""Rendering the chart with real helm."""

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CHART = REPOSITORY / "charts" / "kvbudget"
HELM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget" / "bin" / "helm"
RELEASE = "kvbudget"
NAMESPACE = "kvbudget-system"
KUBERNETES = "1.34.4"
"""helm built from its module thinks that it talks to Kubernetes 1.20 until it is told."""

Object = dict[str, Any]


class RenderError(Exception):
    """helm refused; the text is what it wrote."""


@functools.cache
def _run(command: tuple[str, ...], values: str) -> str:
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RenderError(done.stderr)
    return done.stdout


class Chart:
    """``render`` gives the objects of the chart for values that are laid over its own."""

    def values(self) -> Object:
        values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
        return values

    def render(self, values: Mapping[str, Any] | None = None, *, release: str = RELEASE) -> list[Object]:
        command = [str(HELM), "template", release, str(CHART), "-n", NAMESPACE, "--kube-version", KUBERNETES, "-f", "-"]
        # libyaml: a chart with its CRDs is half a second of pure Python.
        rendered = yaml.load_all(_run(tuple(command), yaml.safe_dump(dict(values or {}))), Loader=yaml.CSafeLoader)
        return [found for found in rendered if found]

    def objects(self, kind: str, values: Mapping[str, Any] | None = None) -> dict[str, Object]:
        """Objects of one kind by name."""
        return {found["metadata"]["name"]: found for found in self.render(values) if found["kind"] == kind}


def pod_specs(objects: list[Object]) -> dict[str, Object]:
    """Every pod spec, by ``Kind/name`` of its object."""
    found = {}
    for each in objects:
        if each["kind"] == "Pod":
            found[f"Pod/{each['metadata']['name']}"] = each["spec"]
        elif "template" in each.get("spec", {}):
            found[f"{each['kind']}/{each['metadata']['name']}"] = each["spec"]["template"]["spec"]
    return found
