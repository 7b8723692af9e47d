"""``kvbudget plan --what-if``: the order, the prices, the speed, and that a cell is the plan it stands for."""

from collections.abc import Callable

import pytest

from kvbudget.cli.inputs import all_devices, model_named
from kvbudget.engines import Settings
from kvbudget.planner.grid import Axes, what_if
from kvbudget.planner.question import Question
from support.commands import Data, Run

QWEN = "Qwen/Qwen3-8B"
SMALL = (
    "--gpu",
    "l4,h100-80gb,a100-80gb",
    "--tp",
    "1,2",
    "--kv-precision",
    "auto,fp8",
    "--max-model-len",
    "8192,40960",
)


def test_what_fits_comes_first_and_the_least_memory_at_the_top(data: Data) -> None:
    cells = data("whatIf", "plan", QWEN, "--what-if", *SMALL)["cells"]
    assert len(cells) == 3 * 2 * 2 * 2
    fitting = [c["fits"] for c in cells]
    assert fitting == sorted(fitting, reverse=True)
    memory = [c["gpu"]["memoryBytes"] * c["gpu"]["count"] for c in cells if c["fits"]]
    assert memory == sorted(memory)
    assert {c["verdict"] for c in cells} == {"fits", "at risk", "does not fit", "refused"}


def test_with_prices_the_cheapest_comes_first_and_the_unpriced_after_it(data: Data, write: Callable[..., str]) -> None:
    prices = write("h100: 2\nl4-24gb: 1.5\n", "prices.yaml")
    cells = data("whatIf", "plan", QWEN, "--what-if", *SMALL, "--price", prices)["cells"]
    fitting = [c for c in cells if c["fits"]]
    assert fitting[0]["gpu"]["class"] == "l4-24gb"
    assert [c["pricePerHour"] for c in fitting][:3] == [1.5, 1.5, 2.0]
    assert fitting[-1]["gpu"]["class"] == "a100-80gb"
    assert fitting[-1]["pricePerHour"] is None
    assert {c["pricePerHour"] for c in fitting if c["gpu"] == {**c["gpu"], "class": "l4-24gb", "count": 2}} == {3.0}


@pytest.mark.parametrize("engine", ["bundled", "vllm", "sglang", "tensorrt-llm"])
def test_a_cell_is_the_plan_of_its_combination(data: Data, engine: str) -> None:
    """Lengths are judged on one budget, so no engine's memory may depend on the length."""
    for cell in data("whatIf", "plan", QWEN, "--what-if", "--engine", engine, *SMALL)["cells"][::5]:
        one = (
            "--gpu",
            cell["gpu"]["class"],
            "--tp",
            str(cell["tensorParallel"]),
            "--kv-precision",
            cell["kvPrecision"],
        )
        plan = data("plan", "plan", QWEN, "--engine", engine, *one, "--max-model-len", str(cell["maxModelLen"]))
        assert {k: plan[k] for k in ("verdict", "reason", "capacity")} == {
            k: cell[k] for k in ("verdict", "reason", "capacity")
        }


def test_the_table_tells_how_many_there_are_and_stops_at_the_limit(run: Run) -> None:
    lines = run("plan", QWEN, "--what-if", *SMALL, "--limit", "2").stdout.splitlines()
    assert lines[0].startswith(f"{QWEN}: ")
    assert lines[2].split()[:4] == ["gpu", "tp", "kv", "maxModelLen"]
    assert lines[-1].startswith("… 22 more;")
    assert len(run("plan", QWEN, "--what-if", *SMALL, "--limit", "0").stdout.splitlines()) == 3 + 24


def test_where_nothing_fits_the_code_is_1(run: Run) -> None:
    assert run("plan", "deepseek-ai/DeepSeek-V3", "--what-if", "--gpu", "l4", "--tp", "1").exit_code == 1


def test_several_values_need_what_if(run: Run) -> None:
    for option in (("--tp", "1,2"), ("--max-model-len", "1,2"), ("--kv-precision", "auto,fp8"), ("--gpu", "l4,h100")):
        result = run("plan", QWEN, "--gpu", "l4", *option)
        assert result.exit_code == 2
        assert f"error: {option[0]}: takes one value here; several need --what-if" in result.stderr


def test_every_combination_is_a_cell_of_its_own() -> None:
    model, devices = model_named(QWEN), all_devices({})
    axes = Axes(devices, (1, 2, 4, 8), (None, "FP8E4M3", "INT8"), (4096, 8192, 16384, 32768, 40960))
    assert axes.cells > 2000
    question = Question(model=model.name, shape=model.shape, device=devices[0], engine="vllm", settings=Settings())
    cells = what_if(question, axes, {})
    assert len({cell.answer.question for cell in cells}) == len(cells) == axes.cells
