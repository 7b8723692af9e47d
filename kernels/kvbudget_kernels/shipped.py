"""Kernels that an image brings along, so that a worker's first request compiles nothing.

The folder (``KVBUDGET_SHIPPED_KERNELS``) holds what ``python -m kvbudget_kernels.aot --ship`` made: a folder for each
compiled kernel, named by Triton's key of its source, constants, options, target and compiler, and the library through
which Triton starts kernels, which Triton itself would build with a C compiler at the first launch. The folder may be
read-only and may lie anywhere. With ``TRITON_CACHE_MANAGER=kvbudget_kernels.shipped:ShippedCache`` Triton looks there
first; what is not there is compiled and kept where Triton keeps such things (TRITON_CACHE_DIR).
"""

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import triton
from triton.runtime.cache import CacheManager, FileCacheManager

FOLDER = "KVBUDGET_SHIPPED_KERNELS"
MANAGER = "kvbudget_kernels.shipped:ShippedCache"
LAUNCHER = "cuda_utils"
KEPT = (".json", ".cubin", ".hsaco")
"""Files of a compiled kernel that a launch needs."""


def launcher_folder(shipped: Path) -> Path:
    return shipped / f"launcher-{triton.__version__}"


class ShippedCache(CacheManager):  # type: ignore[misc]
    """See the module. One object per key; files that are written go to Triton's own cache."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._key = key
        self._mode = {"override": override, "dump": dump}
        given = os.environ.get(FOLDER)
        self._shipped = Path(given) if given and not (override or dump) else None

    @cached_property
    def _own(self) -> Any:
        # Made where it is needed: it creates its folder.
        return FileCacheManager(self._key, **self._mode)

    def get_file(self, filename: str) -> str | None:
        if self._shipped is not None:
            folder = launcher_folder(self._shipped) if filename.startswith(LAUNCHER) else self._shipped / self._key
            if (folder / filename).is_file():
                return str(folder / filename)
        found: str | None = self._own.get_file(filename)
        return found

    def get_group(self, filename: str) -> dict[str, str] | None:
        if self._shipped is not None:
            folder = self._shipped / self._key
            if (listed := folder / f"__grp__{filename}").is_file():
                paths = {name: folder / name for name in json.loads(listed.read_text())["child_paths"]}
                if all(path.is_file() for path in paths.values()):
                    return {name: str(path) for name, path in paths.items()}
        group: dict[str, str] | None = self._own.get_group(filename)
        return group

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        return str(self._own.put(data, filename, binary))

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return str(self._own.put_group(filename, group))


def trim(shipped: Path) -> None:
    """Leaves in a folder that Triton filled what a launch needs, and no path of the machine that compiled."""
    for listed in shipped.glob("*/__grp__*.json"):
        names = json.loads(listed.read_text())["child_paths"]
        kept = {name: name for name in sorted(names) if name.endswith(KEPT)}
        listed.write_text(json.dumps({"child_paths": kept}))
        for path in listed.parent.iterdir():
            if path != listed and path.name not in kept:
                path.unlink()
