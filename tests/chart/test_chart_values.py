"""values.yaml, its schema, its table in the README, and the templates say the same."""

import json
from typing import Any

import pytest
import yaml

from chart_readme import documented, rendered, undocumented
from support.helmchart import CHART, Chart, Object, RenderError

DIGEST = f"sha256:{'0' * 64}"

# For every leaf of values.yaml a value that differs from the default.
CHANGED: dict[str, Any] = {
    "nameOverride": "other",
    "fullnameOverride": "other",
    "commonLabels": {"team": "inference"},
    "imagePullSecrets": [{"name": "pull"}],
    "namespaces": ["models"],
    "logFormat": "json",
    "podSecurityContext": {"fsGroup": 1000},
    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    "image.repository": "example/operator",
    "image.tag": "other",
    "image.digest": DIGEST,
    "image.pullPolicy": "Always",
    "worker.image.repository": "example/worker",
    "worker.image.tag": "other",
    "worker.image.digest": DIGEST,
    "worker.image.pullPolicy": "Always",
    "worker.imagePullSecrets": ["pull"],
    "crds.enabled": False,
    "crds.keep": False,
    "operator.scrapeSeconds": 9,
    "admission.replicas": 3,
    "admission.podDisruptionBudget": False,
    "admission.topologySpreadConstraints": [],
    "webhook.failurePolicy": "Ignore",
    "webhook.timeoutSeconds": 9,
    "webhook.annotations": {"cert-manager.io/inject-ca-from": "kvbudget-system/webhook"},
    "webhook.certificateSecret": "webhook",
    "verify.enabled": False,
    "verify.timeoutSeconds": 60,
    "rbac.aggregate": False,
    "networkPolicy.enabled": True,
    "networkPolicy.metricsFrom": [{"namespaceSelector": {}}],
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-extra"}}],
    **{
        f"{component}.{key}": value
        for component in ("operator", "admission")
        for key, value in {
            "resources": {"requests": {"cpu": "2"}},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
            "podAnnotations": {"a": "b"},
            "podLabels": {"a": "b"},
            "serviceAccountAnnotations": {"a": "b"},
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        }.items()
    },
}
# Values that show only together with others.
TOGETHER: dict[str, dict[str, Any]] = {"networkPolicy.metricsFrom": {"networkPolicy.enabled": True}}


def leaves(values: Object, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in values.items():
        documented_whole = f"{prefix}{key}" in CHANGED
        if isinstance(value, dict) and value and not documented_whole:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found.add(f"{prefix}{key}")
    return found


def nested(paths: dict[str, Any]) -> Object:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    tree: Object = {}
    for path, value in paths.items():
        *parents, last = path.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return tree


def test_the_table_of_changes_names_every_value(chart: Chart) -> None:
    assert set(CHANGED) == leaves(chart.values())


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(CHANGED))
def test_every_value_changes_what_is_rendered(chart: Chart, path: str) -> None:
    others = TOGETHER.get(path, {})
    assert chart.render(nested({**others, path: CHANGED[path]})) != chart.render(nested(others))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("imagee", {}),
        ("image.tagg", "dev"),
        ("worker.image.repo", "x"),
        ("operator.replicas", 2),
        ("admission.replicas", "two"),
        ("admission.replicas", 0),
        ("webhook.failurePolicy", "Sometimes"),
        ("webhook.timeoutSeconds", 31),
        ("image.digest", "sha256:short"),
        ("image.pullPolicy", "never"),
        ("crds.keep", "yes"),
        ("operator.resources.limit", {}),
        ("operator.extraEnv", [{"nme": "X"}]),
        ("extraObjects", {}),
        ("operator.podLabels", {"a": 1}),
        ("podSecurityContext", "restricted"),
        ("admission.topologySpreadConstraints", [{"topologyKey": "zone"}]),
    ],
)
def test_a_typo_or_a_wrong_value_is_refused_by_its_path(chart: Chart, path: str, value: Any) -> None:
    with pytest.raises(RenderError) as refused:
        chart.render(nested({path: value}))
    assert path.split(".", maxsplit=1)[0] in str(refused.value)
    assert "don't meet the specifications of the schema" in str(refused.value)


def test_every_object_of_the_schema_is_closed_or_a_map() -> None:
    def walk(schema: Object, path: str) -> None:
        if properties := schema.get("properties"):
            assert schema["additionalProperties"] is False, path
            for key, below in properties.items():
                walk(below, f"{path}.{key}")
        if isinstance(items := schema.get("items"), dict):
            walk(items, f"{path}[]")

    schema = json.loads((CHART / "values.schema.json").read_text())
    walk(schema, "")
    for name, shared in schema["definitions"].items():
        walk(shared, f"#{name}")


def test_the_readme_has_the_table_of_values() -> None:
    source = (CHART / "values.yaml").read_text()
    assert undocumented(source) == []
    readme = (CHART / "README.md").read_text()
    assert rendered(readme, source) == readme, "run python scripts/chart_readme.py"


def test_a_value_without_a_comment_is_found() -> None:
    source = "# -- Text\n# that goes on.\na: 1\nb:\n  # -- Inner.\n  c: {x: 1}\n  d: 2\n"
    assert undocumented(source) == ["b.d"]
    assert [(v.path, v.default, v.text) for v in documented(source)] == [
        ("a", "1", "Text that goes on."),
        ("b.c", "{x: 1}", "Inner."),
    ]


def test_the_chart_names_its_images_licence_and_kinds() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    notes = about["annotations"]
    assert about["kubeVersion"]
    assert notes["artifacthub.io/license"] == "Apache-2.0"
    assert {image["name"] for image in yaml.safe_load(notes["artifacthub.io/images"])} == {"operator", "worker"}
    assert {crd["kind"] for crd in yaml.safe_load(notes["artifacthub.io/crds"])} == {"LLMService", "GPUClass"}
