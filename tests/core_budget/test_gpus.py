"""The catalogue of GPU types: memory as drivers report it, what each can do, names by which it is found."""

import pytest

from kvbudget.api import parse_gpu_class
from kvbudget.errors import Problem
from kvbudget.gpu import CATALOGUE, CatalogueEntry, lookup
from kvbudget.gpucatalogue import ROWS

GIB = 2**30
REQUIRED = [
    "a10-24gb",
    "a40-48gb",
    "a100-40gb",
    "a100-80gb",
    "l4-24gb",
    "l40s-48gb",
    "rtx-3090-24gb",
    "rtx-4090-24gb",
    "rtx-5090-32gb",
    "rtx-pro-6000-96gb",
    "h20-96gb",
    "h100-80gb",
    "h200-141gb",
    "b200-180gb",
    "b300-288gb",
    "gb200-186gb",
    "gb300-288gb",
    "gh200-96gb",
    "gb10-128gb",
    "t4-16gb",
    "v100-16gb",
    "v100-32gb",
    "mi210-64gb",
    "mi250x-64gb",
    "mi300x-192gb",
    "mi325x-256gb",
    "mi350x-288gb",
    "mi355x-288gb",
]


def found(name: str) -> CatalogueEntry:
    entry = lookup(name)
    assert isinstance(entry, CatalogueEntry), entry
    return entry


def test_every_type_that_people_rent_is_there() -> None:
    assert set(REQUIRED) <= set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_type_is_a_valid_gpu_class_and_leaves_the_box_behind(name: str) -> None:
    entry = CATALOGUE[name]
    parse_gpu_class(entry.manifest(name))
    boxed = int(name.rpartition("-")[2].removesuffix("gb"))
    assert 0.85 * boxed < entry.memory_bytes / GIB <= entry.memory_high_bytes / GIB <= boxed
    assert entry.memory_high_bytes <= 1.02 * entry.memory_bytes


# What CUDA reported in public logs, in GiB.
@pytest.mark.parametrize(
    ("name", "logged"),
    [
        ("h100-80gb", 79.19), ("a100-40gb", 39.5), ("h200-141gb", 139.81), ("b200-180gb", 178.36),
        ("rtx-3090-24gb", 23.58), ("gb10-128gb", 121.7), ("gb200-186gb", 184.31), ("gb300-288gb", 276.5),
        ("b300-288gb", 267.69), ("rtx-pro-6000-96gb", 94.97), ("rtx-5090-32gb", 31.36), ("l40s-48gb", 44.43),
        ("l4-24gb", 22.03), ("t4-16gb", 14.56), ("v100-32gb", 31.73), ("mi300x-192gb", 191.98),
    ],
)  # fmt: skip
def test_what_drivers_reported_is_inside_the_band(name: str, logged: float) -> None:
    entry = CATALOGUE[name]
    assert entry.memory_bytes / GIB - 0.006 <= logged <= entry.memory_high_bytes / GIB + 0.006
    assert entry.measured


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("v100-16gb", {"FP16"}, {"BF16", "FP8E4M3", "NVFP4"}),
        ("a100-80gb", {"BF16", "INT8"}, {"FP8E4M3", "NVFP4"}),
        ("l4-24gb", {"BF16", "FP8E4M3"}, {"NVFP4"}),
        ("h100-80gb", {"FP8E4M3"}, {"NVFP4"}),
        ("b200-180gb", {"FP8E4M3", "NVFP4"}, set()),
        ("rtx-5090-32gb", {"FP8E4M3", "NVFP4"}, set()),
        ("mi210-64gb", {"BF16"}, {"FP8E4M3"}),
        ("mi300x-192gb", {"BF16", "FP8E4M3"}, {"NVFP4"}),
    ],
)
def test_precisions_follow_from_the_architecture(name: str, has: set[str], lacks: set[str]) -> None:
    offered = set(CATALOGUE[name].kv_precisions)
    assert has <= offered
    assert not lacks & offered
    assert ("FP8" in CATALOGUE[name].weight_precisions) == ("FP8E4M3" in offered)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("h100-80gb", "h100-80gb"), ("H100", "h100-80gb"), ("NVIDIA-H100-80GB-HBM3", "h100-80gb"),
        ("NVIDIA H200", "h200-141gb"), ("rtx_5090", "rtx-5090-32gb"), ("MI355X", "mi355x-288gb"),
    ],
)  # fmt: skip
def test_a_type_is_found_by_the_names_people_and_nodes_use(given: str, name: str) -> None:
    assert found(given) == CATALOGUE[name]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("h100-80g", "there is no GPU type h100-80g; did you mean h100-80gb"),
        ("rtx-5090-24gb", "did you mean rtx-5090-32gb"),
        ("abacus", "there is no GPU type abacus; `kvbudget gpus` lists them"),
        ("h100-80gb-mig-3g.20gb", "h100-80gb has no MIG profile 3g.20gb; it has 1g.10gb"),
        ("l4-24gb-mig-1g.5gb", "l4-24gb has no MIG profile 1g.5gb; it has none"),
    ],
)
def test_a_name_that_is_not_known_is_answered_with_the_nearest(given: str, said: str) -> None:
    problem = lookup(given)
    assert isinstance(problem, Problem)
    assert said in problem.message


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.mig])
def test_a_mig_profile_is_a_smaller_gpu_with_its_own_resource(name: str) -> None:
    for profile, size in ROWS[name].mig:
        part = found(f"{name}-mig-{profile}")
        assert part.memory_bytes == size <= CATALOGUE[name].memory_bytes
        assert part.resource_name == f"nvidia.com/mig-{profile}"
        assert 0 < part.bandwidth_bytes <= CATALOGUE[name].bandwidth_bytes
        parse_gpu_class(part.manifest(f"{name}-mig"))
