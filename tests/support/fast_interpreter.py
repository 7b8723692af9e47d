"""Makes Triton's interpreter quicker without changing what it computes.

Each call of a device function inside a kernel patches the whole of ``triton.language`` anew, which costs more than most
functions do. Here one patch lasts until the launch ends.
"""

from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def install() -> None:
    """For this process, once."""
    patch_all = interpreter._patch_lang
    patched: set[frozenset[str]] = set()

    def patch_once(fn: Any) -> Any:
        sees = frozenset(
            module.__name__ for module in (tl, tl.core) if any(v is module for v in fn.__globals__.values())
        )
        if sees in patched:
            return interpreter._LangPatchScope()
        outermost = not patched
        scope = patch_all(fn)
        patched.add(sees)
        if outermost:
            restore = scope.restore

            def ended() -> None:
                patched.clear()
                restore()

            scope.restore = ended
        return scope

    interpreter._patch_lang = patch_once
