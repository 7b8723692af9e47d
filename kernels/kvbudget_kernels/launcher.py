"""Triton's launcher, built where a C compiler is, for an image that has none.

Triton starts kernels through a library that it builds from ``driver.c`` at the first launch, linked with the driver's
libcuda. Here a stand-in of libcuda is linked: the same name, and the functions that are called, each of which fails. At
a launch the loader takes the driver's own.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.runtime.build import compile_so_from_file

from kvbudget_kernels.shipped import LAUNCHER, launcher_folder

_BACKEND = Path(triton.__file__).parent / "backends" / "nvidia"
LIBCUDA = "libcuda.so.1"
_NOT_INITIALIZED = 3


def stand_in(source: str) -> str:
    """C of a library with every driver function that ``source`` names."""
    names = sorted(set(re.findall(r"\b(cu[A-Z]\w*)\s*\(", source)))
    return "".join(f"int {name}(void) {{ return {_NOT_INITIALIZED}; }}\n" for name in names)


def link_stand_in(folder: Path) -> Path:
    """The stand-in as ``folder``/libcuda.so.1. Needs a C compiler ($CC, cc)."""
    library = folder / LIBCUDA
    command = [
        os.environ.get("CC", "cc"),
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{LIBCUDA}",
        "-x",
        "c",
        "-",
        "-o",
        str(library),
    ]
    subprocess.run(command, input=stand_in((_BACKEND / "driver.c").read_text()), text=True, check=True)
    return library


def build_launcher(shipped: Path) -> Path:
    """Builds the launcher into ``shipped``, by Triton's own recipe. Needs a C compiler and Python's headers."""
    with tempfile.TemporaryDirectory() as folder:
        link_stand_in(Path(folder))
        with triton.knobs.cache.scope():
            triton.knobs.cache.dir = folder
            built = compile_so_from_file(
                src_path=str(_BACKEND / "driver.c"), name=LAUNCHER, library_dirs=[str(_BACKEND / "lib"), folder],
                include_dirs=[str(_BACKEND / "include")], libraries=[LIBCUDA],
            )  # fmt: skip
        target = launcher_folder(shipped)
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(built, target))
