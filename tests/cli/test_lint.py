"""``kvbudget lint``: where each problem is, what is passed over, and the codes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.commands import Data, Run

Write = Callable[..., str]


def too_long(service: dict[str, Any]) -> dict[str, Any]:
    return {**service, "spec": {**service["spec"], "maxModelLen": 131072}}


def test_sound_manifests_pass(run: Run, write: Write, service: dict[str, Any], gpu_class: dict[str, Any]) -> None:
    folder = Path(write([service], "a/service.yaml")).parent
    write([gpu_class], "a/deep/class.yml")
    result = run("lint", "-f", str(folder))
    assert (result.exit_code, result.stdout) == (0, "2 objects in 2 files: 0 errors, 0 warnings\n")


def test_a_problem_has_its_file_document_and_field(data: Data, write: Write, service: dict[str, Any]) -> None:
    path = write([service, {"kind": "ConfigMap"}, too_long(service)])
    found = data("lint", "lint", "-f", path)
    assert found["objects"] == 2
    (problem,) = found["problems"]
    assert (problem["file"], problem["document"], problem["name"]) == (path, 3, "chat")
    assert (problem["field"], problem["check"], problem["severity"]) == ("spec.maxModelLen", "BudgetTooSmall", "error")
    assert "Fits: maxModelLen ≤ 29120" in problem["message"]


def test_all_that_a_schema_refuses_is_told_with_the_nearest_field(
    run: Run, write: Write, service: dict[str, Any], gpu_class: dict[str, Any]
) -> None:
    typo = {**service, "spec": {**service["spec"], "maxModelLn": 1, "gpu": {}}}
    lots = {**gpu_class, "spec": {"memory": "lots"}}
    result = run("lint", "-f", write([typo, lots]))
    assert result.exit_code == 1
    assert (
        "document 1: LLMService chat: error: spec.maxModelLn: is not a field; did you mean maxModelLen?"
        in result.stdout
    )
    assert "document 1: LLMService chat: error: spec.gpu.class: is required" in result.stdout
    assert "document 2: GPUClass ours: error: spec.memory: " in result.stdout


def test_a_class_may_be_in_another_file_and_an_unknown_one_has_near_names(
    data: Data, write: Write, service: dict[str, Any], gpu_class: dict[str, Any]
) -> None:
    elsewhere = {**service, "spec": {**service["spec"], "gpu": {"class": "ours"}}}
    unknown = {**service, "spec": {**service["spec"], "gpu": {"class": "h100-80g"}}}
    folder = Path(write([elsewhere, unknown], "a/service.yaml")).parent
    write([gpu_class], "a/class.yaml")
    (problem,) = data("lint", "lint", "-f", str(folder))["problems"]
    assert problem["check"] == "UnknownGPUClass"
    assert "use one of the catalogue's: h100-80gb" in problem["message"]


def test_memory_as_the_box_says_it_is_a_warning(data: Data, write: Write, gpu_class: dict[str, Any]) -> None:
    boxed = {**gpu_class, "metadata": {"name": "h100-80gb"}, "spec": {"memory": "80Gi"}}
    path = write([boxed, gpu_class, gpu_class])
    problems = data("lint", "lint", "-f", path)["problems"]
    assert [(p["severity"], p["check"]) for p in problems] == [
        ("warning", "MemoryAboveDriver"),
        ("warning", "ClassTwice"),
    ]


def test_warnings_alone_are_code_0(run: Run, write: Write, gpu_class: dict[str, Any]) -> None:
    assert run("lint", "-f", write([gpu_class, gpu_class])).exit_code == 0


def test_other_files_below_a_folder_are_passed_over(run: Run, write: Write, service: dict[str, Any]) -> None:
    folder = Path(write([service], "a/service.yaml")).parent
    write("{{ template }}: [", "a/template.yaml")
    write("kind: LLMService\n", "a/.hidden/service.yaml")
    write(b"\xff\x00kvbudget.dev", "a/model.bin")
    assert run("lint", "-f", str(folder)).exit_code == 0


def test_what_cannot_be_read_is_code_2_beside_the_problems_of_the_rest(
    run: Run, data: Data, write: Write, service: dict[str, Any]
) -> None:
    folder = Path(write([too_long(service)], "a/service.yaml")).parent
    broken, binary = write("kind: LLMService: [\n", "a/broken.yaml"), write(b"\xff\xfe", "a/binary.json")
    result = run("lint", "-f", str(folder))
    assert result.exit_code == 2
    assert "spec.maxModelLen" in result.stdout
    assert f"error: {broken}: is not YAML" in result.stderr
    assert {u["file"] for u in data("lint", "lint", "-f", str(folder))["unreadable"]} == {broken, binary}


def test_nothing_to_check_is_code_2(run: Run, tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "missing.yaml"), "a\0b", ""):
        result = run("lint", "-f", path)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")


def test_a_document_that_is_no_object_is_called_by_its_number(run: Run, write: Write) -> None:
    result = run("lint", "-f", write("kind: GPUClass\n---\n[1]\n"))
    assert result.exit_code == 2
    assert "document 2 is a list, not an object" in result.stderr


def test_stdin_is_linted_for_a_dash(run: Run) -> None:
    result = run("lint", "-f", "-", stdin="kind: GPUClass\nmetadata: &a {x: *a}\nspec: *a\n")
    assert result.exit_code == 1
    assert "GPUClass" in result.stdout
