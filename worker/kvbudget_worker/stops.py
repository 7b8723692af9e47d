"""Stop strings in a stream: text is held back while it may still turn out to be the beginning of one. Pure."""

from collections.abc import Sequence


class StopScanner:
    """Scans the text of one choice.

    >>> scan = StopScanner(["###"])
    >>> scan.push("one #"), scan.push("# two"), scan.push(" ##"), scan.push("# three")
    (('one ', False), ('## two', False), (' ', False), ('', True))
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(s) for s in self._stops), default=0)
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Takes new text; returns what may be shown now, and whether a stop string was found (nothing follows then).
        Where two stop strings match, the one that begins first wins."""
        if not self._stops:
            return text, False
        buffer = self._held + text
        found = min(((at, len(s)) for s in self._stops if (at := buffer.find(s)) >= 0), default=None)
        if found is not None:
            self._held = ""
            at, length = found
            return buffer[: at + length if self._include else at], True
        keep = self._possible_start(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], False

    def pass_through(self, text: str) -> str:
        """Takes new text in which stop strings do not count (before ``min_tokens``)."""
        return self.flush() + text

    def flush(self) -> str:
        """The held text; to be called when the choice ends for another reason."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, buffer: str) -> int:
        """Length of the longest suffix that begins a stop string without completing it."""
        for length in range(min(self._longest - 1, len(buffer)), 0, -1):
            suffix = buffer[len(buffer) - length :]
            if any(s.startswith(suffix) for s in self._stops):
                return length
        return 0
