"""What every engine's budget is made of: terms with low, expected and high, a pool of pages, stages, a verdict.

For each stage and exactly, in bytes, at the expected values::

    usable = Σ terms + kv            kv = pages × page + remainder

The low end of the KV memory is what is left if every term is at its high end, and the other way round. Whether a
sequence fits is judged on the low end.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from kvbudget.engines.settings import Settings

GIB: Final = 1024**3

Verdict = Literal["fits", "at risk", "KV too small", "refused"]


@dataclass(frozen=True, slots=True)
class Band:
    """Bytes: the least and the most that were seen or can be, and what is expected. ``low <= expected <= high``."""

    low: int
    expected: int
    high: int

    def __add__(self, other: "Band") -> "Band":
        return Band(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def minus(self, other: "Band") -> "Band":
        """The difference, with the ends crossed: the low end is low minus high.

        >>> Band(10, 20, 30).minus(Band(1, 2, 5))
        Band(low=5, expected=18, high=29)
        """
        return Band(self.low - other.high, self.expected - other.expected, self.high - other.low)


def exact(size: int) -> Band:
    """A figure without a band."""
    return Band(size, size, size)


def gib(value: float) -> int:
    """GiB as bytes."""
    return round(value * GIB)


def band(low: float, expected: float, high: float) -> Band:
    """A band given in GiB."""
    return Band(gib(low), gib(expected), gib(high))


@dataclass(frozen=True, slots=True)
class Term:
    """One deduction. ``source`` says where the figure comes from: a formula, a file of the engine, a log."""

    name: str
    bytes: Band
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers of a pool that share a block table. A request takes :meth:`pages_for` pages of every group.

    ``layers`` with padding layers not counted; ``block_tokens`` tokens lie in one page. ``bound_tokens`` is the most
    tokens that are kept at once (a window or chunk with what is in flight; None: all); ``extra_pages`` for a
    window that begins inside a block. ``state_pages``: a fixed number instead, whatever the tokens. ``shares``: ranks
    over which the tokens of one request are dealt out (decode context parallelism)."""

    kind: str
    layers: int
    block_tokens: int
    bound_tokens: int | None = None
    extra_pages: int = 0
    state_pages: int | None = None
    shares: int = 1

    def pages_for(self, tokens: int) -> int:
        """Pages of this group that a request of ``tokens`` tokens needs at most.

        >>> CacheGroup(kind="sliding", layers=10, block_tokens=16, bound_tokens=9215, extra_pages=1).pages_for(8192)
        513
        """
        if self.state_pages is not None:
            return self.state_pages
        kept = -(-tokens // self.shares)
        if self.bound_tokens is not None:
            kept = min(kept, self.bound_tokens)
        return -(-kept // self.block_tokens) + self.extra_pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The shared pool of pages. ``page_bytes`` is that of one stage; groups are those of the whole model and the same
    on every stage. ``reserved_pages`` are held back by the engine when it tests what fits."""

    page_bytes: int
    groups: tuple[CacheGroup, ...]
    reserved_pages: int = 0

    def pages_for(self, tokens: int) -> int:
        """Pages that one request of ``tokens`` tokens needs, over all groups."""
        return sum(group.pages_for(tokens) for group in self.groups)

    def pages_in(self, kv_bytes: int) -> int:
        """Whole pages in so many bytes; 0 where there are none."""
        return max(0, kv_bytes // self.page_bytes)

    @property
    def growing_tokens_per_page(self) -> int:
        """Tokens in a page of the group that grows without bound (of the largest block, where all are bounded)."""
        growing = [g.block_tokens * g.shares for g in self.groups if g.bound_tokens is None and g.state_pages is None]
        return min(growing) if growing else max(g.block_tokens for g in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBudget:
    """One rank of a pipeline stage. ``memory_bytes`` is the whole device, ``usable_bytes`` the engine's share of it."""

    stage: int
    layers: int
    memory_bytes: int
    usable_bytes: int
    terms: tuple[Term, ...]
    outside: tuple[Term, ...]
    """What must find room in ``memory - usable``, beside the engine's share."""
    pool: Pool

    @property
    def fixed(self) -> Band:
        """All terms together."""
        total = exact(0)
        for term in self.terms:
            total += term.bytes
        return total

    @property
    def kv(self) -> Band:
        """Bytes left for KV; negative where the rest alone is too large."""
        return exact(self.usable_bytes).minus(self.fixed)

    @property
    def pages(self) -> Band:
        kv = self.kv
        return Band(*(self.pool.pages_in(size) for size in (kv.low, kv.expected, kv.high)))

    @property
    def remainder_bytes(self) -> int:
        """Expected KV bytes that fill no page."""
        return self.kv.expected - self.pages.expected * self.pool.page_bytes

    def term(self, name: str) -> Band:
        """A term by name; zero where there is none of that name."""
        return next((t.bytes for t in (*self.terms, *self.outside) if t.name == name), exact(0))


@dataclass(frozen=True)
class EngineBudget:
    """The budget of one replica. ``worst`` is the stage that decides. ``verdict`` is for one request of
    ``max_model_len`` tokens, and ``reason`` says why; ``assumptions`` are for the user."""

    engine: str
    version: str
    max_model_len: int
    stages: tuple[StageBudget, ...]
    verdict: Verdict
    reason: str
    kv_precision: str
    token_line: Literal["groups", "concurrency"] = "groups"
    assumptions: tuple[str, ...] = ()
    settings: Settings | None = field(default=None, compare=False, repr=False)

    @cached_property
    def worst(self) -> StageBudget:
        return min(self.stages, key=lambda stage: (stage.pages.expected, stage.kv.expected))

    @cached_property
    def pages(self) -> Band:
        """Pages of every rank: that of the stage with the fewest, for each end of the band."""
        ends = [stage.pages for stage in self.stages]
        return Band(min(p.low for p in ends), min(p.expected for p in ends), min(p.high for p in ends))

    @property
    def grantable_pages(self) -> Band:
        """Pages without those that the engine holds back."""
        pages, held = self.pages, self.worst.pool.reserved_pages
        return Band(max(0, pages.low - held), max(0, pages.expected - held), max(0, pages.high - held))

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token that is kept in every layer that keeps tokens, on the rank that decides."""
        return bytes_per_token(self.worst.pool)

    @property
    def kv_tokens(self) -> Band:
        """Tokens as the engine's log counts them. Of a model with several cache groups they are no capacity: see
        :meth:`longest_len` and :meth:`max_concurrency`."""
        pool = self.worst.pool
        if self.token_line == "concurrency" and len(pool.groups) > 1:
            need = pool.pages_for(self.max_model_len)
            return Band(
                *(p * self.max_model_len // need for p in (self.pages.low, self.pages.expected, self.pages.high))
            )
        groups, tokens = len(pool.groups), min(g.block_tokens * g.shares for g in pool.groups)
        return Band(*(p // groups * tokens for p in (self.pages.low, self.pages.expected, self.pages.high)))

    def max_concurrency(self, tokens: int | None = None) -> float:
        """Requests of ``tokens`` tokens (default: ``max_model_len``) that fit at once, as the engine's log says it."""
        return self.pages.expected / self.worst.pool.pages_for(self.max_model_len if tokens is None else tokens)

    def holds(self, tokens: int) -> bool:
        """Whether one request of ``tokens`` tokens is expected to fit."""
        return self.worst.pool.pages_for(tokens) <= self.grantable_pages.expected

    def longest_len(self, at_most: int | None = None) -> int:
        """The longest request that is expected to fit, no longer than ``at_most`` tokens (default: ``max_model_len``);
        0 where none does. What an engine calls the estimated maximum model length."""
        return longest(self.worst.pool, self.grantable_pages.expected, at_most or self.max_model_len)


def longest(pool: Pool, pages: int, at_most: int) -> int:
    """The most tokens, up to ``at_most``, of a request that needs no more than ``pages`` pages; 0 where none fits."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if pool.pages_for(middle) <= pages:
            low = middle
        else:
            high = middle - 1
    return low


def bytes_per_token(pool: Pool) -> float:
    """Bytes of one token in every group that keeps tokens; a page of the pool holds one group's tokens."""
    return sum(pool.page_bytes / (g.block_tokens * g.shares) for g in pool.groups if g.state_pages is None)
