"""The pool of physical KV pages: who holds which, and which content can be found again.

Pages are numbers ``0 … pages - 1``; the tensors behind them have one page more, ``scratch``, which is never granted.
A page is free (content worthless), held (somebody counts on it), or cached (content worth keeping, held by nobody). A
cached page counts as free: it is taken, least recently used first, when no free page is left.

A full page is found again by a digest chained over all tokens before it: ``sha256(digest of the page before + its
tokens)``, starting from a root that holds what else the content depends on (:meth:`BlockPool.root`). The tokens
themselves are compared too, so a page is never taken for another, whatever its digest. Whoever holds a page of a chain
holds all pages before it, and lets go of the last ones first; so the least recently used cached page is always the end
of a chain, and no cached page loses the page before it.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvbudget.errors import LedgerError


@dataclass(frozen=True, slots=True)
class PageKey:
    """What a full page is found by. ``content``: the digest of the page before and the page's tokens; ``digest``: the
    SHA-256 of that."""

    digest: bytes
    content: bytes


def page_key(parent: bytes, token_ids: Sequence[int]) -> PageKey:
    """Key of a full page; ``parent`` is the digest of the page before it, for the first page the root."""
    content = parent + array("I", token_ids).tobytes()
    return PageKey(hashlib.sha256(content).digest(), content)


def prompt_keys(token_ids: Sequence[int], page_tokens: int, root: bytes) -> list[PageKey]:
    """Keys of the full pages of a prompt that may come from the cache: at least its last token is left over, since the
    first output token is sampled from that one's forward pass."""
    keys: list[PageKey] = []
    for start in range(0, len(token_ids) - page_tokens, page_tokens):
        keys.append(page_key(keys[-1].digest if keys else root, token_ids[start : start + page_tokens]))
    return keys


class BlockPool:
    """See the module. Not thread-safe: one thread owns it. A broken precondition raises LedgerError.

    ``content``: names what a page's bytes depend on beside its tokens, like the model and the KV precision."""

    def __init__(self, pages: int, page_tokens: int, *, prefix_cache: bool, content: Sequence[str] = ()) -> None:
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
        self._key_of: dict[int, PageKey] = {}
        self._content = tuple(part.encode() for part in (*content, str(page_tokens)))

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

    def root(self, salt: bytes = b"") -> bytes:
        """Where the chains of a salt (a tenant's) begin: pages are shared only under the same root. Each part goes in
        with its length, so that no two roots differ merely in where a part ends."""
        parts = (*self._content, salt)
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()

    def match(self, token_ids: Sequence[int], salt: bytes = b"") -> list[int]:
        """Pages of the longest cached prefix of a prompt, without its last token. Holds nothing: acquire them before
        the next allocate."""
        if not self.prefix_cache:
            return []
        return self.find(prompt_keys(token_ids, self.page_tokens, self.root(salt)))

    def find(self, keys: Iterable[PageKey]) -> list[int]:
        """Pages of the longest cached beginning of a chain of keys."""
        found: list[int] = []
        for key in keys:
            page = self._page_of.get(key.digest)
            if page is None or self._key_of[page].content != key.content:
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
            del self._page_of[self._key_of.pop(page).digest]
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
        if page in self._key_of:
            self._cached[page] = None
        else:
            self._free.append(page)

    def register(self, page: int, key: PageKey) -> int | None:
        """Makes a held, fully computed page findable. Returns the page that has this content: itself, or the one that
        was registered before it and stays the only one; the caller should go on with that one. None: another content
        has the same digest; neither this page nor any after it in its chain can be found, so register none."""
        if not self._refs[page]:
            raise LedgerError(f"page {page} is held by nobody and cannot be registered")
        if not self.prefix_cache:
            return page
        if self._key_of.get(page, key) != key:
            raise LedgerError(f"page {page} is registered with another content")
        first = self._page_of.setdefault(key.digest, page)
        if first == page:
            self._key_of[page] = key
        return first if self._key_of[first].content == key.content else None
