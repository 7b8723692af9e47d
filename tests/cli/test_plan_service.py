"""``plan -f`` with ``--what-if`` and ``--plot``: the same table and picture as of a MODEL."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.commands import Data, Run

Write = Callable[..., str]


def with_model(service: dict[str, Any], **changes: object) -> dict[str, Any]:
    return {**service, "spec": {**service["spec"], "model": {**service["spec"]["model"], **changes}}}


def test_a_services_table_is_that_of_the_same_file_as_model(data: Data, write: Write, service: dict[str, Any]) -> None:
    path = write([service])
    table = data("whatIf", "plan", "-f", path, "--what-if", "--gpu", "l4,h100", "--tp", "1,2")
    assert table == data("whatIf", "plan", path, "--what-if", "--gpu", "l4,h100", "--tp", "1,2")
    assert {cell["maxModelLen"] for cell in table["cells"]} == {8192}
    assert len(table["cells"]) == 2 * 2 * 2


def test_a_table_knows_the_classes_of_the_files(
    data: Data, write: Write, service: dict[str, Any], gpu_class: dict[str, Any]
) -> None:
    cells = data("whatIf", "plan", "-f", write([service, gpu_class]), "--what-if", "--tp", "1")["cells"]
    assert "ours" in {cell["gpu"]["class"] for cell in cells}


def test_a_picture_comes_with_the_operators_verdict(
    run: Run, write: Write, tmp_path: Path, service: dict[str, Any]
) -> None:
    path, picture = write([service]), tmp_path / "service.png"
    result = run("plan", "-f", path, "--plot", str(picture))
    assert (result.exit_code, result.stdout) == (0, run("plan", "-f", path).stdout)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", [("--what-if",), ("--plot", "x.png")])
def test_one_service_at_a_time_is_drawn_or_varied(
    run: Run, write: Write, service: dict[str, Any], option: tuple[str, ...]
) -> None:
    other = {**service, "metadata": {"name": "other"}}
    result = run("plan", "-f", write([service, other]), *option)
    assert result.exit_code == 2
    assert f"{option[0]}: takes one LLMService, and the files hold 2 (chat, other)" in result.stderr


@pytest.mark.parametrize("precision", ["BF16", "FP16", "FP32", "FP8", "INT8", "INT4"])
def test_a_service_as_model_has_the_operators_budget_in_every_weight_precision(
    data: Data, write: Write, service: dict[str, Any], precision: str
) -> None:
    changed = with_model(service, weightPrecision=precision)
    path = write([{**changed, "spec": {**changed["spec"], "gpu": {"class": "h100-80gb"}}}])
    by_operator, by_planner = data("service", "plan", "-f", path), data("plan", "plan", path)
    assert by_planner["stages"][0]["kvBytes"]["expected"] == by_operator["budget"]["kvBytes"]
    assert by_planner["capacity"]["pages"]["expected"] == by_operator["budget"]["pages"]


def test_a_config_gives_a_service_its_shape_in_a_table_too(data: Data, write: Write, service: dict[str, Any]) -> None:
    config = write(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, '
        '"num_attention_heads": 4, "max_position_embeddings": 8192, "vocab_size": 128}',
        "config.json",
    )
    path = write([with_model(service, name="unknown/model")])
    assert data("whatIf", "plan", "-f", path, "--config", config, "--what-if", "--gpu", "l4", "--tp", "1")["cells"]
