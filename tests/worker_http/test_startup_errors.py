"""``python -m kvbudget_worker``: what a user can fix is told in one line, with the fix; never a traceback."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvbudget.errors import InputError
from kvbudget.plan import Plan
from kvbudget_worker import __main__ as worker_main
from kvbudget_worker import lastwords
from kvbudget_worker.server import bind, read_plan
from kvbudget_worker.settings import Settings
from support.scripted import make_plan
from support.tinymodel import make_tiny_model, tiny_plan


def run(env: dict[str, str]) -> tuple[int, str]:
    """Exit code and the lines on stderr that are no log lines."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KVBUDGET_")}
    result = subprocess.run(
        [sys.executable, "-m", "kvbudget_worker"],
        env=inherited | {"KVBUDGET_HOST": "127.0.0.1", "KVBUDGET_PORT": "0", "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    return result.returncode, errors[0]


@pytest.mark.slow
def test_missing_plan(tmp_path: Path) -> None:
    code, error = run({"KVBUDGET_PLAN": str(tmp_path / "none.json")})
    assert code == 1
    assert "there is no Plan" in error
    assert "KVBUDGET_PLAN" in error


@pytest.mark.slow
def test_port_in_use(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(make_plan().to_json())
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        code, error = run({"KVBUDGET_PLAN": str(tmp_path / "plan.json"), "KVBUDGET_PORT": port})
    assert code == 1
    assert f"port {port} on 127.0.0.1 is in use" in error
    assert "set another port" in error


@pytest.mark.slow
def test_missing_weights(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(make_plan(weights_path=str(tmp_path / "nothing")).to_json())
    code, error = run({"KVBUDGET_PLAN": str(tmp_path / "plan.json"), "KVBUDGET_DEVICE": "cpu"})
    assert code == 1
    assert str(tmp_path / "nothing") in error


@pytest.mark.parametrize(
    ("problem", "left"),
    [
        (InputError("plan", "is\nno Plan"), "error: plan: is no Plan"),
        (RuntimeError("out of\nmemory"), "error: RuntimeError: out of memory"),
        (InputError("plan", "x" * 9000), f"error: plan: {'x' * 987}"),
    ],
    ids=["a user's", "any other", "long"],
)
def test_what_ends_the_start_is_left_in_the_termination_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception, left: str
) -> None:
    def fail(path: str) -> Plan:
        raise problem

    note = tmp_path / "termination-log"
    note.write_text("requests cut off by the drain: 12, and much more of a life before" * 20)
    monkeypatch.setenv("KVBUDGET_TERMINATION_LOG", str(note))
    monkeypatch.setattr(worker_main, "read_plan", fail)
    if isinstance(problem, InputError):
        assert worker_main.main() == 1
    else:
        with pytest.raises(RuntimeError):
            worker_main.main()
    assert note.read_text() == left


@pytest.mark.parametrize("path", [None, "", "/nowhere/log"])
def test_no_termination_log_is_no_error(monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
    monkeypatch.delenv("KVBUDGET_TERMINATION_LOG", raising=False)
    if path is not None:
        monkeypatch.setenv("KVBUDGET_TERMINATION_LOG", path)
    lastwords.leave("error: x")


@pytest.mark.slow
def test_truncated_weights(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    (tmp_path / "plan.json").write_text(tiny_plan(folder).to_json())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, error = run({"KVBUDGET_PLAN": str(tmp_path / "plan.json"), "KVBUDGET_DEVICE": "cpu"})
    assert code == 1
    assert "model.safetensors" in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no Plan of this version"),
        ("{", "is no Plan of this version"),
        ("{}", "serviceName: Field required"),
        (make_plan().to_json().replace('"planVersion":1', '"planVersion":9'), "planVersion"),
        (make_plan().to_json().replace('"kv":', '"extra":1,"kv":'), "extra"),
        (
            make_plan()
            .to_json()
            .replace('"pages":64,"precision":"BF16","prefix', '"pages":0,"precision":"BF16","prefix'),
            "kv.pages",
        ),
        (make_plan().to_json().replace('"pageTokens":16', '"pageTokens":0'), "kv.pageTokens"),
        (make_plan().to_json().replace('"maxSequences":64', '"maxSequences":0'), "engine.maxSequences"),
        (make_plan().to_json().replace('"maxBatchedTokens":256', '"maxBatchedTokens":-1'), "engine.maxBatchedTokens"),
    ],
)
def test_broken_plan(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_plan(str(path))
    assert words in str(caught.value)
    assert "mount the operator's Plan there" in str(caught.value)


def test_a_plan_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(str(tmp_path))


def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(InputError, match=r"KVBUDGET_HOST: cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"KVBUDGET_PORT": "http"}, "KVBUDGET_PORT: 'http' is no port"),
        ({"KVBUDGET_PORT": "70000"}, "KVBUDGET_PORT: '70000' is no port"),
        ({"KVBUDGET_DEVICE": "tpu"}, "KVBUDGET_DEVICE: 'tpu' is no device: set cuda or cpu"),
    ],
)
def test_wrong_settings_are_named(env: dict[str, str], words: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings.from_env(env)
    assert words in str(caught.value)


def test_settings_by_default() -> None:
    settings = Settings.from_env({})
    assert str(settings.plan_path) == "/etc/kvbudget/plan.json"
    assert (settings.host, settings.port, settings.device) == ("0.0.0.0", 8000, None)
