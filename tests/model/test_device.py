"""What a container may use: memory and processors, as its cgroup says."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvbudget_worker.device import free_bytes, limit_threads

CPU = torch.device("cpu")
MIB = 1024**2


@pytest.fixture
def threads() -> Iterator[int]:
    """torch has 4 threads; what it had is restored."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("900000 100000", 4), ("max 100000", 4)],
)
def test_threads_are_no_more_than_the_containers_processors(
    cpu_max: str, expected: int, threads: int, tmp_path: Path
) -> None:
    (tmp_path / "cpu.max").write_text(cpu_max + "\n")
    limit_threads(tmp_path)
    assert torch.get_num_threads() == expected


def test_threads_stay_as_they_are_where_nothing_limits_them(threads: int, tmp_path: Path) -> None:
    limit_threads(tmp_path)
    assert torch.get_num_threads() == threads


def test_free_memory_is_what_the_container_may_still_take(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{70 * MIB}\n")
    assert free_bytes(CPU, tmp_path) == 30 * MIB
    (tmp_path / "memory.stat").write_text(f"anon {50 * MIB}\ninactive_file {20 * MIB}\n")
    assert free_bytes(CPU, tmp_path) == 50 * MIB
    (tmp_path / "memory.current").write_text(f"{150 * MIB}\n")
    assert free_bytes(CPU, tmp_path) == 0


def test_free_memory_is_the_hosts_where_nothing_limits_it(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert 16 * MIB < free_bytes(CPU, tmp_path) < 2**48
