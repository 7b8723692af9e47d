"""The run on a GPU is ready: with tiny shapes, interpreted on the CPU, every part makes its rows."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_dry_run_makes_rows_of_every_part_and_no_time(tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "bench/gpu/run.sh"), "--dry-run", "--out", str(tmp_path)]
    env = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row["part"] for row in rows} == {"ceilings", "smoke", "grid", "ablations", "comparators", "tiles"}
    assert {row["status"] for row in rows if row["part"] == "smoke"} == {"ok"}
    assert {row["status"] for row in rows} <= {"ok", "not timed", "absent"}
    assert not any("median_us" in row for row in rows)
    assert {"page id ahead", "page id in place", "TMA"} <= {row["what"] for row in rows}
    assert all(row["model_bytes"] >= row["live_bytes"] for row in rows if row["part"] == "grid")
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert [row["case"] for row in csv.DictReader(file)] == [row["case"] for row in rows]
