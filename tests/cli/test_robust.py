"""What a terminal, a disk and a stranger's folder do to the commands: never a traceback, never a wait without end."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from support.commands import Data, Run

Write = Callable[..., str]
QWEN = ("plan", "Qwen/Qwen3-8B", "--gpu", "l4")
SIZE = ("size", "Qwen/Qwen3-8B", "--gpu", "l4", "--input-tokens", "100", "--output-tokens", "10")

WRONG = {
    "an unknown option": (*QWEN, "--no-such-option"),
    "a value of the wrong kind": (*QWEN, "--tp", "zero"),
    "a missing option": ("size", "Qwen/Qwen3-8B"),
    "an unknown command": ("plann",),
    "an unknown model": ("explain", "nobody/nothing"),
    "an unknown type": ("plan", "Qwen/Qwen3-8B", "--gpu", "nothing"),
    "a file that is not there": ("plan", "-f", "nowhere.yaml"),
    "no model": ("plan",),
    "a table too large": ("plan", "Qwen/Qwen3-8B", "--what-if", "--max-model-len", ",".join(map(str, range(1, 999)))),
}


@pytest.mark.parametrize("output", ["json", "yaml"])
@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_a_mistake_is_data_too_where_data_is_asked_for(
    run: Run, schema: dict[str, Any], arguments: tuple[str, ...], output: str
) -> None:
    result = run(*arguments, "-o", output)
    assert result.exit_code == 2
    found = json.loads(result.stdout) if output == "json" else yaml.safe_load(result.stdout)
    Draft202012Validator({"$ref": "#/$defs/error", "$defs": schema["$defs"]}).validate(found)
    assert all(line in result.stderr for line in found["errors"])


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "-inf", "1e5", "", "1e999", "0x10", "١", "1_0", "9" * 400])
@pytest.mark.parametrize("option", ["--requests-per-second", "--ms-per-output-token"])
def test_a_rate_or_time_must_be_a_plain_number_above_0(run: Run, option: str, number: str) -> None:
    given = {"--requests-per-second": "4", "--ms-per-output-token": "30"} | {option: number}
    result = run(*SIZE, *(part for pair in given.items() for part in pair))
    assert result.exit_code == 2
    assert option in result.stderr


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "1.5", "", "9" * 30])
@pytest.mark.parametrize("option", ["--input-tokens", "--output-tokens", "--target-percent", "--max-num-seqs"])
def test_a_count_must_be_a_whole_number_above_0(run: Run, option: str, number: str) -> None:
    result = run(*SIZE, "--requests-per-second", "4", "--ms-per-output-token", "30", option, number)
    assert result.exit_code == 2
    assert option in result.stderr


def test_the_largest_numbers_are_sized(data: Data) -> None:
    found = data(
        "size", *SIZE[:4], "--input-tokens", "1000", "--output-tokens", "1000", "--requests-per-second", "999999999",
        "--ms-per-output-token", "999999999",
    )  # fmt: skip
    assert found["replicas"] > 10**15


PIPED = {
    "a list": ("gpus", "--mig"),
    "a table": ("plan", "Qwen/Qwen3-8B", "--what-if", "--limit", "0"),
    "data": ("models", "-o", "json"),
    "a plan": QWEN,
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", PIPED.values(), ids=PIPED)
def test_a_reader_that_leaves_after_a_line_sees_no_traceback(arguments: tuple[str, ...]) -> None:
    command = f"{sys.executable} -m kvbudget {' '.join(arguments)} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
    assert done.returncode in (0, 1, 2)


@pytest.mark.slow
def test_a_full_disk_is_one_line() -> None:
    command = f"{sys.executable} -m kvbudget gpus > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("where", ["missing/x.png", "folder.png", "full.png", "x.jpeg", "\0.png"])
def test_a_picture_that_cannot_be_written_is_an_error(run: Run, tmp_path: Path, where: str) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "full.png").symlink_to("/dev/full")
    result = run(*QWEN, "--plot", str(tmp_path / where))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_a_thousand_manifests_are_linted_in_a_few_seconds(
    run: Run, tmp_path: Path, service: dict[str, Any], gpu_class: dict[str, Any]
) -> None:
    for number in range(1000):
        one = {**(service if number % 4 else gpu_class), "metadata": {"name": f"n{number}"}}
        path = tmp_path / f"{number % 20}" / f"{number}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(one) if number % 3 else yaml.safe_dump(one), encoding="utf-8")
    began = time.process_time()
    result = run("lint", "-f", str(tmp_path))
    assert time.process_time() - began < 5
    assert result.stdout.endswith("1000 objects in 1000 files: 0 errors, 0 warnings\n")


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join([f'*{before}'] * 10)}]\n" for before, one in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{one}: &{one} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, one in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize("bomb", [LAUGHS, MERGES], ids=["lists", "merges"])
def test_aliases_that_expand_without_end_are_refused_at_once(
    run: Run, write: Write, service: dict[str, Any], bomb: str
) -> None:
    path = write("kind: LLMService\n" + bomb + "spec: *j\n")
    began = time.process_time()
    for arguments in (("lint", "-f", path), ("plan", "-f", path), ("plan", path, "--gpu", "l4"),
                      (*QWEN[:2], "--what-if", "--price", path)):  # fmt: skip
        result = run(*arguments)
        assert result.exit_code == 2
        assert "aliases expand to more than 500000 values" in result.stderr
    assert time.process_time() - began < 5


def test_a_large_file_is_refused_unread(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 1024**2)
    began = time.process_time()
    for arguments in (("lint", "-f", str(path)), ("plan", "-f", str(path)), ("lint", "-f", str(tmp_path))):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "is larger than 4 MiB" in result.stderr
    assert time.process_time() - began < 2


def test_pipes_loops_and_other_encodings_below_a_folder_hold_nothing_up(
    run: Run, write: Write, tmp_path: Path, service: dict[str, Any]
) -> None:
    write([service], "a/service.yaml")
    os.mkfifo(tmp_path / "a" / "pipe.yaml")
    (tmp_path / "a" / "itself.yaml").symlink_to("itself.yaml")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "gone.yaml").symlink_to("nowhere")
    assert run("lint", "-f", str(tmp_path)).stdout == "1 object in 1 file: 0 errors, 0 warnings\n"
    write("kind: LLMService\n".encode("utf-16"), "a/utf16.yaml")
    result = run("lint", "-f", str(tmp_path))
    assert result.exit_code == 2
    assert "utf16.yaml: is no text" in result.stderr


def test_a_document_nested_without_end_is_refused(run: Run, write: Write) -> None:
    for text in ("[" * 20_000, "{a: " * 20_000, "- " * 20_000 + "x"):
        result = run("lint", "-f", write("kind: LLMService\n---\n" + text))
        assert result.exit_code == 2
        assert "is not YAML" in result.stderr
