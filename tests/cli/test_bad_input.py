"""No input makes a command show a traceback: code 2, the option or file, the fault, the fix."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.commands import Run

QWEN = ("plan", "Qwen/Qwen3-8B")
USAGE = {
    "no model and no file": (("plan",), "MODEL: is missing"),
    "no gpu": (QWEN, "--gpu: is missing"),
    "unknown model": (("plan", "Qwen/Qwen3-8b-x", "--gpu", "l4"), "did you mean Qwen/Qwen3-8B"),
    "unknown model, nothing near": (("explain", "zzzzzz"), "`kvbudget models` lists the names. Else give"),
    "ambiguous model": (("explain", "SmolLM2-135M-instruct"), "give the whole name"),
    "unknown gpu": ((*QWEN, "--gpu", "h100-80g"), "did you mean h100-80gb"),
    "unknown MIG profile": ((*QWEN, "--gpu", "h100-80gb-mig-9g.1gb"), "has no MIG profile 9g.1gb; it has 1g.10gb"),
    "unknown engine": ((*QWEN, "--gpu", "l4", "--engine", "vlm"), "'vlm' is not one of"),
    "unknown precision": ((*QWEN, "--gpu", "l4", "--kv-precision", "fp9"), "'fp9' is no KV precision; use one of auto"),
    "no version": ((*QWEN, "--gpu", "l4", "--engine-version", "new"), "is no version; write it like 0.19"),
    "version of the worker": ((*QWEN, "--gpu", "l4", "--engine", "bundled", "--engine-version", "1"), "leave it out"),
    "tp of zero": ((*QWEN, "--gpu", "l4", "--tp", "0"), "is not a whole number from 1 to 1024"),
    "length of words": ((*QWEN, "--gpu", "l4", "--max-model-len", "32k"), "'32k' is not a whole number"),
    "more stages than layers": ((*QWEN, "--gpu", "l4", "--pp", "64"), "--pp: 64 stages for 36 layers; use 36 or fewer"),
    "utilization of 0": ((*QWEN, "--gpu", "l4", "--utilization", "0"), "--utilization"),
    "utilization above 1": ((*QWEN, "--gpu", "l4", "--utilization", "1.1"), "1.1 is above 1; give a share"),
    "utilization of nan": ((*QWEN, "--gpu", "l4", "--utilization", "nan"), "--utilization"),
    "price without a table": ((*QWEN, "--gpu", "l4", "--price", "x"), "--price: is for --what-if"),
    "options of MODEL with -f": (("plan", "-f", "x", "--tp", "2"), "--tp: needs MODEL"),
    "config with MODEL": ((*QWEN, "--gpu", "l4", "--config", "x"), "--config: is for -f without MODEL"),
    "a table too large": ((*QWEN, "--what-if", "--max-model-len", ",".join(map(str, range(1, 999)))), "name fewer"),
    "a model that the worker cannot serve": (
        ("plan", "deepseek-ai/DeepSeek-V3", "--gpu", "h100", "--engine", "bundled"),
        "the bundled worker serves dense decoders; this model is mla; use another engine",
    ),
    "no such file": (("plan", "./missing/config.json", "--gpu", "l4"), "is neither a file nor a model"),
    "null byte": (("explain", "a\0b"), "error: "),
    "very long": (("explain", "a" * 5000), "error: "),
}


@pytest.mark.parametrize(("arguments", "said"), USAGE.values(), ids=USAGE)
def test_bad_usage_exits_2_and_says_what_to_do(run: Run, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


FILES: dict[str, tuple[str, str | bytes, str]] = {
    "empty": ("config.json", "", "is not JSON"),
    "binary": ("config.json", bytes(range(256)), "is not JSON"),
    "a list": ("config.json", "[]", "config.json"),
    "nested": ("config.json", "[" * 100_000, "is not JSON"),
    "unknown key": (
        "config.json",
        json.dumps({"model_type": "llama", "num_hidden_layers": 2, "kv_magic_window": 3}),
        "config.json",
    ),
    "empty gguf": ("m.gguf", "", "is empty"),
    "binary gguf": ("m.gguf", b"GGUF" + bytes(range(256)) * 4, "m.gguf"),
    "cut gguf": ("m.gguf", b"GGUF\x03\x00\x00\x00", "m.gguf"),
    "params": ("params.json", "{}", "params.json"),
    "a manifest without a service": ("s.yaml", "kind: Deployment\n", "holds 0 LLMServices"),
    "broken manifest": ("s.yaml", "a: [", "is not YAML"),
    "binary manifest": ("s.yml", b"\xff\xff", "is no text"),
}


@pytest.mark.parametrize(("name", "content", "said"), FILES.values(), ids=FILES)
def test_a_wrong_file_is_named(run: Run, write: Callable[..., str], name: str, content: str | bytes, said: str) -> None:
    path = write(content, name)
    for command in (("plan", path, "--gpu", "l4"), ("explain", path)):
        result = run(*command)
        assert result.exit_code == 2
        assert said in result.stderr
        assert path in result.stderr


def test_an_empty_folder_says_what_it_lacks(run: Run, tmp_path: Path) -> None:
    result = run("explain", str(tmp_path))
    assert result.exit_code == 2
    assert "none of config.json, params.json, *.gguf" in result.stderr


PRICES = {
    "unknown type": ("h100-80g: 2", "did you mean h100-80gb"),
    "no number": ("l4-24gb: cheap", "it must be a number above 0"),
    "negative": ("l4-24gb: -1", "it must be a number above 0"),
    "nan": ("l4-24gb: .nan", "it must be a number above 0"),
    "twice": ("l4-24gb: 1\nl4: 2", "has two prices"),
    "a list": ("[1]", "is a list, not an object"),
    "empty": ("", "must be one object"),
}


@pytest.mark.parametrize(("content", "said"), PRICES.values(), ids=PRICES)
def test_a_wrong_price_list_is_named(run: Run, write: Callable[..., str], content: str, said: str) -> None:
    result = run(*QWEN, "--what-if", "--price", write(content, "prices.yaml"))
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_service_beside_a_model_is_refused(run: Run, write: Callable[..., str], service: dict[str, Any]) -> None:
    result = run(*QWEN, "--gpu", "l4", "-f", write([service]))
    assert result.exit_code == 2
    assert "leave out MODEL to plan it" in result.stderr


_WORDS = st.one_of(
    st.sampled_from(
        ["-f", "--gpu", "l4", "Qwen/Qwen3-8B", "--tp", "--what-if", "-o", "json", "--engine", "sglang", "."]
    ),
    st.text(max_size=8),
    st.integers(-3, 10**12).map(str),
)


@given(command=st.sampled_from(["plan", "size", "explain", "models", "gpus"]), words=st.lists(_WORDS, max_size=5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_arguments_never_end_in_a_traceback(run: Run, command: str, words: list[str]) -> None:
    assert run(command, *words, stdin="").exit_code in (0, 1, 2)


# --- as a real process ------------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    command = f"{sys.executable} -m kvbudget models -o json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ('{\n  "schem', "")


def test_on_a_terminal_the_bar_is_as_wide_as_it_and_coloured() -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "kvbudget", "plan", "Qwen/Qwen3-8B", "--gpu", "h100"]
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.STDOUT, env=environment)
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # the end of a terminal reads as an error
        while part := os.read(ours, 65536):
            text += part
    os.close(ours)
    assert process.wait() == 0
    line = next(one for one in text.decode().splitlines() if one.startswith("  [") and "W" in one)
    assert len(re.sub(r"\x1b\[[0-9;]*m", "", line)) == 58
    assert "\x1b[" in line


def test_a_closed_standard_output_is_one_line() -> None:
    command = f"{sys.executable} -m kvbudget gpus >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the output cannot be written: standard output is closed\n"


def test_importing_the_package_is_quick_and_needs_no_library() -> None:
    code = "import time; t = time.process_time(); import kvbudget.cli; d = time.process_time() - t; import sys; "
    code += "print(d < 0.15, sorted({'click', 'rich', 'yaml', 'torch', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True []\n"
