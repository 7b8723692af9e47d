"""The command line: what it prints, its exit codes, and that no input makes it show a traceback."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from kvbudget import cli
from kvbudget.crd import crds

Changed = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def run(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(cli.app(), arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes text, or objects as a YAML stream, and gives the path."""

    def written(content: str | bytes | list[Any], name: str = "service.yaml") -> str:
        path = tmp_path / name
        if isinstance(content, list):
            content = yaml.safe_dump_all(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return written


def test_a_service_that_fits_exits_0_and_every_term_is_printed(
    write: Callable[..., str], service_manifest: dict[str, Any]
) -> None:
    result = run("plan", "-f", write([service_manifest]))
    assert result.exit_code == 0
    for term in (
        "demo/chat: meta-llama/Llama-3.1-8B-Instruct on l4-24gb",
        "8 KV heads (GQA)",
        "usable = memory × 90%            21212902195 B",
        "− weights                        16060522496 B",
        "− activations                      481861632 B",
        "− graphs                                   0 B",
        "− runtime                          838860800 B",
        "= KV                              3831657267 B",
        "page                                 8388608 B",
        "pages                                    455",
        "tokens = pages × 64                    29120",
        "remainder of KV                      6452019 B",
        "headroom                          2356989133 B",
        "FP8E4M3          58368\n",
        "FITS: maxModelLen 29120, 1 sequence of that length at once",
        "note: spec.maxModelLen: left out; 29120 tokens, the largest that fits",
    ):
        assert term in result.output


def test_a_service_that_does_not_fit_exits_1_with_the_arithmetic_and_what_would(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any]
) -> None:
    result = run("plan", "-f", write([changed(service_manifest, {"spec.maxModelLen": 131072})]))
    assert result.exit_code == 1
    assert "DOES NOT FIT" in result.output
    assert "error: spec.maxModelLen: 131072 tokens need 2048 pages" in result.output
    assert "Fits: maxModelLen ≤ 29120; or kvCache.precision FP8E4M3" in result.output


def test_json_has_the_budget_the_plan_and_the_remedies(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any]
) -> None:
    fits = json.loads(run("plan", "-o", "json", "-f", write([service_manifest])).output)
    assert fits["fits"] is True
    assert fits["budget"]["tokens"] == fits["plan"]["limits"]["tokensInFlight"] == 29120
    assert len(fits["planHash"]) == 10
    too_long = changed(service_manifest, {"spec.maxModelLen": 131072})
    refused = json.loads(run("plan", "-o", "json", "-f", write([too_long])).output)
    assert (refused["fits"], refused["plan"], refused["planHash"]) == (False, None, None)
    assert refused["budget"]["pages"] == 455
    assert refused["errors"][0]["check"] == "BudgetTooSmall"
    assert refused["remedies"][0] == {
        "text": "maxModelLen ≤ 29120",
        "served": True,
        "changes": [{"path": "spec.maxModelLen", "value": 29120}],
    }


def test_a_class_in_the_file_wins_over_the_catalogue(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any], class_manifest: dict[str, Any]
) -> None:
    larger = changed(class_manifest, {"spec.memory": "24Gi"})
    result = json.loads(run("plan", "-o", "json", "-f", write([service_manifest, larger])).output)
    assert result["budget"]["gpuMemoryBytes"] == 24 * 2**30


def test_classes_and_services_may_come_in_several_files_and_in_a_list(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any], class_manifest: dict[str, Any]
) -> None:
    own = changed(class_manifest, {"metadata.name": "own"})
    service = changed(service_manifest, {"spec.gpu.class": "own"})
    classes = write([{"apiVersion": "v1", "kind": "List", "items": [own]}], "classes.yaml")
    result = run("plan", "-f", classes, "-f", write([service]))
    assert result.exit_code == 0


def test_several_services_are_all_told_and_one_that_does_not_fit_decides(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any]
) -> None:
    too_long = changed(service_manifest, {"metadata.name": "long", "spec.maxModelLen": 131072})
    path = write([service_manifest, {"kind": "ConfigMap"}, too_long])
    text, data = run("plan", "-f", path), run("plan", "-f", path, "-o", "json")
    assert (text.exit_code, data.exit_code) == (1, 1)
    assert "demo/chat" in text.output
    assert "demo/long" in text.output
    assert [item["fits"] for item in json.loads(data.output)["items"]] == [True, False]


def test_stdin_is_read_for_a_dash(service_manifest: dict[str, Any]) -> None:
    assert run("plan", "-f", "-", stdin=json.dumps(service_manifest)).exit_code == 0


def test_config_json_gives_a_service_its_shape(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any]
) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "vocab_size": 100,
    }
    service = write([changed(service_manifest, {"spec.model.name": "acme/tiny"})])
    assert run("plan", "-f", service).exit_code == 1
    result = run("plan", "-f", service, "--config", write(json.dumps(config), "config.json"))
    assert result.exit_code == 0
    assert "2 layers, hidden 64, 4 heads of 16, 4 KV heads (MHA)" in result.output


@pytest.mark.parametrize(
    ("name", "near"), [("l4", "l4-24gb"), ("h100-80g", "h100-80gb"), ("zzzzzz", "`kvbudget gpus` lists them")]
)
def test_an_unknown_class_in_files_has_near_ones_of_the_catalogue(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any], name: str, near: str
) -> None:
    result = run("plan", "-f", write([changed(service_manifest, {"spec.gpu.class": name})]))
    assert result.exit_code == 1
    told = " ".join(result.output.split())
    fix = "add the GPUClass with another -f, or use one of the catalogue's"
    assert f"GPUClass {name} is in none of the files; {fix}: {near}" in told
    assert "kubectl" not in told.partition("in none of the files")[2][:120]


def test_a_manifest_as_model_whose_class_is_elsewhere_says_how(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any]
) -> None:
    result = run("plan", write([changed(service_manifest, {"spec.gpu.class": "demo-gpu"})]))
    assert result.exit_code == 2
    assert "the manifest's class demo-gpu is in another file" in result.output
    assert "kvbudget plan -f FILE -f gpuclass.yaml" in result.output


def test_crd_prints_what_the_api_server_takes() -> None:
    result = run("crd")
    assert result.exit_code == 0
    assert list(yaml.safe_load_all(result.output)) == crds()


# --- bad input --------------------------------------------------------------------------------------------------------

SOUND = "apiVersion: kvbudget.dev/v1alpha1\nkind: LLMService\nmetadata: {name: a}\nspec: {gpu: {class: l4-24gb}, "
BAD = {
    "broken yaml": ("a: [1\n", "is not YAML: line 2, column 1"),
    "binary junk": (bytes(range(128, 256)), "is no text (byte 0 is not UTF-8)"),
    "null bytes": (b"\x00\x01", "is not YAML"),
    "empty": ("", "has no LLMService (found nothing)"),
    "wrong kind": ("kind: Deployment\n", "has no LLMService (found Deployment)"),
    "a class alone": (
        "apiVersion: kvbudget.dev/v1alpha1\nkind: GPUClass\nmetadata: {name: g}\nspec: {memory: 8Gi}\n",
        "has no LLMService (found GPUClass)",
    ),
    "unquoted Off": (
        SOUND + "model: {source: {pvc: {claimName: w}}}, kvCache: {prefixCache: {mode: Off}}}",
        "spec.kvCache.prefixCache.mode: must be 'Shared', 'Off' or 'PerTenant'; is False (YAML reads an unquoted",
    ),
    "no kind": ("a: 1\n", "has no LLMService (found an object without kind)"),
    "text": ("hello", "document 1 is a text, not an object"),
    "a list": ("[1, 2]", "document 1 is a list, not an object"),
    "key twice": ("kind: LLMService\nkind: GPUClass\n", "the key 'kind' occurs twice"),
    "nested without end": ("[" * 5_000, "is not YAML"),
    "a list in itself": ("&a\nkind: List\nitems: [*a]\n", "is not YAML: maximum recursion depth"),
    "a hexadecimal number without end": (f"kind: 0x{'f' * 5000}\n", "line 1, column 7: a number of 5002 characters"),
    "a sexagesimal number without end": (f"kind: 1{':59' * 3000}\n", "line 1, column 7: a number of 9001 characters"),
    "escapes in a name": ('kind: LLMService\nmetadata: {name: "\\e[2J\\a"}\n', r"LLMService \x1b[2J\x07: apiVersion"),
    "alias in itself": ("kind: LLMService\nmetadata: &a {x: *a}\nspec: *a\n", "LLMService: spec.model: is required"),
    "unhashable key": ("? [a, b]\n: c\n", "found unhashable key"),
    "number as key": ("kind: LLMService\n1: x\n", "Keys should be strings"),
    "no such date": ("a: 2026-99-99\n", "is not YAML: month must be in 1..12"),
    "python object": ("!!python/object:os.system {}\n", "could not determine a constructor"),
    "missing fields": (SOUND + "}", "LLMService a: spec.model: is required; set it"),
    "typo": (SOUND + "model: {source: {pvc: {claimName: w}}}, maxModelLn: 3}", "did you mean maxModelLen?"),
    "bad class": ("kind: GPUClass\nmetadata: {name: g}\nspec: {memory: lots}\n", "GPUClass g: spec.memory: "),
    "too large": ("#" * (cli.MAX_INPUT_BYTES + 1), "is larger than 4 MiB"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_bad_input_exits_2_and_names_the_file_and_the_fault(
    write: Callable[..., str], content: str | bytes, said: str
) -> None:
    path = write(content)
    result = run("plan", "-f", path)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {path}: ")
    assert said in result.output


@pytest.mark.parametrize("config", ["{", "[]", '{"model_type": "gpt2"}', '{"model_type": "llama"}'])
def test_a_broken_config_json_exits_2(write: Callable[..., str], service_manifest: dict[str, Any], config: str) -> None:
    path = write(config, "config.json")
    result = run("plan", "-f", write([service_manifest]), "--config", path)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {path}: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "-f", "does-not-exist.yaml"),
        ("plan", "-f", "."),
        ("plan", "-f", ""),
        ("plan", "-f", "a\0b"),
        ("plan",),
        ("plan", "-f", "x.yaml", "-o", "xml"),
        ("nonsense",),
    ],
    ids=" ".join,
)
def test_bad_usage_exits_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


# --- as a real process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"), [({}, 0), ({"spec.maxModelLen": 131072}, 1), ({"spec.maxModelLen": "many"}, 2)]
)
def test_the_process_exits_with_the_code(
    write: Callable[..., str], changed: Changed, service_manifest: dict[str, Any], changes: dict[str, Any], code: int
) -> None:
    path = write([changed(service_manifest, changes)])
    done = subprocess.run([sys.executable, "-m", "kvbudget", "plan", "-f", path], capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert (done.stderr == "") == (code != 2)


def test_a_terminal_that_cannot_show_a_sign_still_gets_the_rest(
    write: Callable[..., str], service_manifest: dict[str, Any]
) -> None:
    command = [sys.executable, "-m", "kvbudget", "plan", "-f", write([service_manifest])]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert b"FITS" in done.stdout
    assert b"Traceback" not in done.stderr


def test_importing_the_core_needs_none_of_the_command_lines_packages() -> None:
    code = "import sys, kvbudget.cli; print(sorted({'click', 'rich', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    code = "import sys; sys.modules['click'] = None; import kvbudget.cli; kvbudget.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'kvbudget[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("output", ["text", "json"])
def test_output_that_cannot_be_written_is_one_line(
    write: Callable[..., str], service_manifest: dict[str, Any], output: str
) -> None:
    command = [sys.executable, "-m", "kvbudget", "plan", "-f", write([service_manifest]), "-o", output]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.stderr == "error: the output cannot be written: No space left on device\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("closed", "text", "code"), [("<&- 2>&-", None, 0), (">&-", None, 2), ("2>&-", "{", 2), ("<&- >&- 2>&-", "{", 2)]
)
def test_a_stream_that_the_caller_has_closed_is_no_traceback_and_lost_output_is_code_2(
    closed: str, text: str | None, code: int, write: Callable[..., str], service_manifest: dict[str, Any]
) -> None:
    command = f'{sys.executable} -m kvbudget plan -f "$1" {closed}'
    shell = ["sh", "-c", command, "sh", write(text or [service_manifest])]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


def test_a_class_that_occurs_twice_is_bad_input(write: Callable[..., str], service_manifest: dict[str, Any]) -> None:
    klass = {
        "apiVersion": "kvbudget.dev/v1alpha1",
        "kind": "GPUClass",
        "metadata": {"name": "twice"},
        "spec": {"memory": "80Gi"},
    }
    result = run("plan", "-f", write([klass, service_manifest, klass]))
    assert result.exit_code == 2
    assert "GPUClass twice occurs twice" in result.output
