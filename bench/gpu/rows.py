"""Results, a row at a time, and the time that a part may take."""

import csv
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIELDS = (
    "part", "case", "what", "status", "rel_l2", "allowed", "live_bytes", "median_us", "p95_us", "floor_us",
    "share_of_peak", "share_of_read_ceiling", "note", "model_bytes", "balance", "device", "arch", "precision",
    "head_dim", "page_tokens", "rows", "tile_tokens", "warps", "stages", "registers",
)  # fmt: skip


@dataclass
class Rows:
    """Writes each row to ``rows.jsonl`` and ``rows.csv`` in ``folder`` at once. ``status``: ok, WRONG, skipped,
    absent (a comparator that is not installed), failed, or not timed (a dry run)."""

    folder: Path
    count: int = 0
    bad: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "rows.jsonl").write_text("")
        with (self.folder / "rows.csv").open("w", newline="") as file:
            csv.writer(file).writerow(FIELDS)

    def add(self, part: str, case: str, what: str, status: str, **values: Any) -> None:
        row = {"part": part, "case": case, "what": what, "status": status, **values}
        with (self.folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        with (self.folder / "rows.csv").open("a", newline="") as file:
            csv.DictWriter(file, FIELDS, restval="").writerow(row)
        self.count += 1
        self.bad += status in ("WRONG", "failed")
        shown = "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())
        print(f"{status:9}  {part:11} {case:34} {what:14} {shown}", flush=True)


@dataclass(frozen=True)
class Deadline:
    """``at``: monotonic seconds."""

    at: float

    @classmethod
    def within(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at
