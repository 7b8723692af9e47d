"""Exit codes, and how much is read of a file. Without imports, so that anybody may have them."""

from typing import Final

EXIT_FITS: Final = 0
EXIT_DOES_NOT_FIT: Final = 1
"""Also: problems found (``lint``)."""
EXIT_BAD_INPUT: Final = 2
"""Bad usage, unreadable input, an output that cannot be written."""
MAX_INPUT_BYTES: Final = 4 * 1024**2
