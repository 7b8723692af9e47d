"""Lay out our packages for an image: the sources, their version for importlib.metadata, and bytecode.

application.py PYPROJECT TARGET PACKAGE…
"""

import compileall
import shutil
import sys
import tomllib
from pathlib import Path


def main(pyproject: Path, target: Path, packages: list[Path]) -> None:
    project = tomllib.loads(pyproject.read_text())["project"]
    for package in packages:
        shutil.copytree(package, target / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    facts = target / f"{project['name']}-{project['version']}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n")
    if not compileall.compile_dir(target, quiet=1):
        sys.exit("a source file does not compile")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(p) for p in sys.argv[3:]])
