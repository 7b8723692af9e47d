"""What holds for the repository as a whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("core", "operator", "worker", "kernels")
FORBIDDEN = {f"{folder}/__init__.py" for folder in SOURCE_ROOTS}
LONGEST_FILE_LINES = 400
GENERATED = re.compile(
    r"^(requirements/.*\.txt|crds/|charts/kvbudget/files/crds/|docs/api\.md|e2e/kind/mods/go\.(mod|sum)|LICENSE$)"
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MENTION = re.compile(
    r"`((?:core|operator|worker|scripts|images|e2e|tests|docs|examples|bench|charts|crds|requirements)/[\w./-]*)`"
)


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def markdown() -> list[str]:
    return [name for name in tracked() if name.endswith(".md")]


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_a_source_root_is_no_package(folder: str) -> None:
    """`operator/__init__.py` would shadow the standard library's operator for whoever runs Python in the root."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_standard_library_is_not_shadowed_in_the_root() -> None:
    subprocess.run([sys.executable, "-c", "import collections, operator; operator.add"], cwd=ROOT, check=True)


def test_no_file_is_too_long() -> None:
    lines = {n: len((ROOT / n).read_bytes().splitlines()) for n in tracked() if not GENERATED.match(n)}
    assert {n: count for n, count in lines.items() if count > LONGEST_FILE_LINES} == {}


@pytest.mark.parametrize("page", markdown())
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link and every path in backticks names something that is there."""
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    targets = [link.partition("#")[0] for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    missing = [t for t in targets if t and not ((ROOT / page).parent / t).exists()]
    missing += [m for m in MENTION.findall(text) if not (ROOT / m).exists() and m not in FORBIDDEN]
    assert missing == []


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    """A home folder or a mount of whoever wrote a file works for nobody else."""
    private = re.compile(rb"(?<![\w.])/(root|home/\w+|work)/")
    assert [n for n in tracked() if private.search((ROOT / n).read_bytes())] == []
