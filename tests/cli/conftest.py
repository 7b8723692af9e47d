"""Runs of the command line in this process, and the schema of its data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from kvbudget import cli
from support.commands import Data, Run

ROOT = Path(__file__).parents[2]


def run_cli(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """The result; anything but an orderly end fails the test, since a user would see a traceback."""
    result = CliRunner().invoke(cli.app(), arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="session")
def run() -> Run:
    return run_cli


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    """docs/cli.schema.json."""
    found: dict[str, Any] = json.loads((ROOT / "docs" / "cli.schema.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="session")
def data(schema: dict[str, Any]) -> Data:
    """Runs with ``-o json`` and gives the data, which the definition of that name in the schema describes."""

    def checked(definition: str, *arguments: str, stdin: str | None = None) -> dict[str, Any]:
        result = run_cli(*arguments, "-o", "json", stdin=stdin)
        found: dict[str, Any] = json.loads(result.stdout)
        Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": schema["$defs"]}).validate(found)
        return found

    return checked


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes text, bytes or objects as a YAML stream, and gives the path."""

    def written(content: str | bytes | list[Any], name: str = "service.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = yaml.safe_dump_all(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return written


SERVICE: dict[str, Any] = {
    "apiVersion": "kvbudget.dev/v1alpha1",
    "kind": "LLMService",
    "metadata": {"name": "chat", "namespace": "demo"},
    "spec": {
        "model": {
            "name": "meta-llama/Llama-3.1-8B-Instruct",
            "source": {"pvc": {"claimName": "weights", "path": "/llama"}},
        },
        "gpu": {"class": "l4-24gb"},
        "maxModelLen": 8192,
    },
}
GPU_CLASS: dict[str, Any] = {
    "apiVersion": "kvbudget.dev/v1alpha1",
    "kind": "GPUClass",
    "metadata": {"name": "ours"},
    "spec": {"memory": "40Gi", "kvPrecisions": ["BF16", "FP8E4M3"]},
}


@pytest.fixture(scope="session")
def service() -> dict[str, Any]:
    """Llama-3.1-8B on an L4, 8192 tokens."""
    return SERVICE


@pytest.fixture(scope="session")
def gpu_class() -> dict[str, Any]:
    """A class of 40 GiB named ours."""
    return GPU_CLASS
