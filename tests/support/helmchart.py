"""Rendering the chart with real helm."""

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

Object = dict[str, Any]


class RenderError(Exception):
    """helm refused; the text is what it wrote."""


class Chart:
    """``render`` gives the objects of the chart for values that are laid over its own."""

    def values(self) -> Object:
        values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
        return values

    def render(self, values: Mapping[str, Any] | None = None, *, release: str = RELEASE) -> list[Object]:
        command = [str(HELM), "template", release, str(CHART), "-n", NAMESPACE, "--include-crds", "-f", "-"]
        text = yaml.safe_dump(dict(values or {}))
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RenderError(done.stderr)
        return [found for found in yaml.safe_load_all(done.stdout) if found]

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
