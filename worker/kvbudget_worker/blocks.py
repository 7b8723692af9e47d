"""The pool of physical KV pages: who holds which, and which content can be found again.

Pages are numbers ``0 … pages - 1``; the tensors behind them have one page more, ``scratch``, which is never granted.
A page is free (content worthless), held (somebody counts on it), or cached (content worth keeping, held by nobody). A
cached page counts as free: it is taken, least recently used first, when no free page is left.

A full page is found again by a digest chained over all tokens before it: ``sha256(digest of the page before + its
tokens)``, starting from a salt. Whoever holds a page of a chain holds all pages before it, and lets go of the last ones
first; so the least recently used cached page is always the end of a chain, and no cached page loses the page before it.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvbudget.errors import LedgerError


def page_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Digest of a full page; ``parent`` is the digest of the page before it, for the first page the salt."""
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()


def prompt_digests(token_ids: Sequence[int], page_tokens: int, salt: bytes = b"") -> list[bytes]:
    """Digests of the full pages of a prompt that may come from the cache: at least its last token is left over, since
    the first output token is sampled from that one's forward pass."""
    digests: list[bytes] = []
    for start in range(0, len(token_ids) - page_tokens, page_tokens):
        digests.append(page_digest(digests[-1] if digests else salt, token_ids[start : start + page_tokens]))
    return digests


class BlockPool:
    """See the module. Not thread-safe: one thread owns it. A broken precondition raises LedgerError."""

    def __init__(self, pages: int, page_tokens: int, *, prefix_cache: bool) -> None:
        if pages < 1 or page_tokens < 1:
            raise LedgerError(f"a pool of {pages} pages of {page_tokens} tokens: both must be at least 1")
        self.pages = pages
        self.page_tokens = page_tokens
        self.prefix_cache = prefix_cache
        self.scratch = pages
        self._refs = [0] * pages
        self._free = list(range(pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def held_pages(self) -> int:
        """Pages that somebody holds."""
        return self.pages - len(self._free) - len(self._cached)

    @property
    def cached_pages(self) -> int:
        """Pages that nobody holds and that still can be found; they count as free."""
        return len(self._cached)

    @property
    def free_pages(self) -> int:
        """Pages that :meth:`allocate` can still give."""
        return len(self._free) + len(self._cached)

    def refs(self, page: int) -> int:
        """How many hold the page."""
        return self._refs[page]

    def match(self, token_ids: Sequence[int], salt: bytes = b"") -> list[int]:
        """Pages of the longest cached prefix of a prompt, without its last token. Holds nothing: acquire them before
        the next allocate."""
        if not self.prefix_cache:
            return []
        return self.find(prompt_digests(token_ids, self.page_tokens, salt))

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Pages of the longest cached beginning of a chain of digests."""
        found: list[int] = []
        for digest in digests:
            page = self._page_of.get(digest)
            if page is None:
                break
            found.append(page)
        return found

    def acquire(self, page: int) -> None:
        """One more holder of a held or cached page."""
        if not self._refs[page]:
            if page not in self._cached:
                raise LedgerError(f"page {page} has no content to share")
            del self._cached[page]
        self._refs[page] += 1

    def allocate(self) -> int:
        """A page with one holder and worthless content. LedgerError if all are held: a reservation rules that out."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            del self._page_of[self._digest_of.pop(page)]
        else:
            raise LedgerError(f"all {self.pages} pages are held")
        self._refs[page] = 1
        return page

    def release(self, page: int) -> None:
        """One holder fewer. Of several pages of one chain, release the last first."""
        if not self._refs[page]:
            raise LedgerError(f"page {page} is held by nobody")
        self._refs[page] -= 1
        if self._refs[page]:
            return
        if page in self._digest_of:
            self._cached[page] = None
        else:
            self._free.append(page)

    def register(self, page: int, digest: bytes) -> int:
        """Makes a held, fully computed page findable. Returns the page that has this content: itself, or the one that
        was registered before it and stays the only one; the caller should go on with that one."""
        if not self._refs[page]:
            raise LedgerError(f"page {page} is held by nobody and cannot be registered")
        if not self.prefix_cache:
            return page
        if self._digest_of.get(page, digest) != digest:
            raise LedgerError(f"page {page} is registered with another content")
        first = self._page_of.setdefault(digest, page)
        if first == page:
            self._digest_of[page] = digest
        return first
