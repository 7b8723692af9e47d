import pytest

from kvbudget.errors import LedgerError
from kvbudget.ledger import Reject
from kvbudget_worker.blocks import BlockPool, PageKey, page_key, prompt_keys
from support.scheduling import Worker


def fill(pool: BlockPool, tokens: list[int], salt: bytes = b"") -> list[int]:
    """Allocates and registers the full pages of a sequence."""
    pages, parent = [], pool.root(salt)
    for start in range(0, len(tokens) - pool.page_tokens + 1, pool.page_tokens):
        key = page_key(parent, tokens[start : start + pool.page_tokens])
        page = pool.allocate()
        assert pool.register(page, key) == page
        pages.append(page)
        parent = key.digest
    return pages


def release(pool: BlockPool, pages: list[int]) -> None:
    for page in reversed(pages):
        pool.release(page)


@pytest.mark.parametrize(
    ("prompt", "pages"),
    [
        ([*range(12), 99], 3),
        (list(range(12)), 2),  # all cached, but the last token must be computed
        (list(range(11)), 2),
        (list(range(4)), 0),
        (list(range(5)), 1),
        ([7, *range(1, 12)], 0),
        ([*range(4), 99, *range(5, 12)], 1),
    ],
)
def test_match_finds_the_longest_cached_prefix_and_leaves_a_token(prompt: list[int], pages: int) -> None:
    pool = BlockPool(8, 4, prefix_cache=True)
    cached = fill(pool, list(range(12)))
    assert pool.match(prompt) == cached[:pages]


def test_a_prefix_is_found_only_under_its_salt() -> None:
    pool = BlockPool(8, 4, prefix_cache=True)
    cached = fill(pool, list(range(8)), salt=b"tenant-a")
    prompt = list(range(9))
    assert pool.match(prompt, b"tenant-a") == cached
    assert pool.match(prompt, b"tenant-b") == pool.match(prompt) == []


def test_a_page_is_found_only_after_the_same_tokens_before_it() -> None:
    pool = BlockPool(8, 4, prefix_cache=True)
    fill(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert pool.match([5, 6, 7, 8, 9]) == []


def test_without_a_prefix_cache_nothing_is_found_and_everything_is_free_again() -> None:
    pool = BlockPool(4, 4, prefix_cache=False)
    pages = fill(pool, list(range(8)))
    assert pool.match(list(range(9))) == []
    release(pool, pages)
    assert (pool.free_pages, pool.cached_pages) == (4, 0)


def test_the_content_registered_first_stays() -> None:
    pool = BlockPool(4, 4, prefix_cache=True)
    key = page_key(pool.root(), [1, 2, 3, 4])
    first, second = pool.allocate(), pool.allocate()
    assert pool.register(first, key) == first
    assert pool.register(second, key) == first
    pool.release(second)
    assert pool.cached_pages == 0  # the second holds nothing worth finding
    assert pool.match([1, 2, 3, 4, 5]) == [first]


def test_cached_pages_count_as_free_and_are_taken_least_recently_used_first() -> None:
    pool = BlockPool(4, 4, prefix_cache=True)
    old, new = fill(pool, [1, 1, 1, 1]), fill(pool, [2, 2, 2, 2])
    release(pool, old)
    release(pool, new)
    assert (pool.held_pages, pool.cached_pages, pool.free_pages) == (0, 2, 4)
    pool.allocate()
    pool.allocate()
    assert pool.match([1, 1, 1, 1, 0]) == old  # free pages go first
    assert pool.allocate() == old[0]
    assert pool.match([1, 1, 1, 1, 0]) == []
    assert pool.match([2, 2, 2, 2, 0]) == new


def test_using_a_cached_page_makes_it_recent() -> None:
    pool = BlockPool(2, 4, prefix_cache=True)
    first, second = fill(pool, [1, 1, 1, 1]), fill(pool, [2, 2, 2, 2])
    release(pool, first)
    release(pool, second)
    pool.acquire(first[0])
    pool.release(first[0])
    assert pool.allocate() == second[0]


def test_the_end_of_a_chain_is_taken_first() -> None:
    pool = BlockPool(3, 2, prefix_cache=True)
    chain = fill(pool, [1, 2, 3, 4, 5, 6])
    release(pool, chain)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    for left in (2, 1, 0):
        pool.allocate()
        assert pool.match(prompt) == chain[:left]


def test_a_page_has_as_many_holders_as_acquired_it() -> None:
    pool = BlockPool(2, 4, prefix_cache=True)
    (page,) = fill(pool, [1, 2, 3, 4])
    pool.acquire(page)
    assert pool.refs(page) == 2
    pool.release(page)
    pool.allocate()
    with pytest.raises(LedgerError, match="held"):
        pool.allocate()


def test_the_scratch_page_is_beyond_the_grantable_ones() -> None:
    pool = BlockPool(3, 4, prefix_cache=True)
    assert pool.scratch == 3
    assert {pool.allocate() for _ in range(3)} == {0, 1, 2}


def test_broken_preconditions_are_errors() -> None:
    pool = BlockPool(2, 4, prefix_cache=True)
    page = pool.allocate()
    pool.register(page, PageKey(b"digest", b"content"))
    for call in (
        lambda: BlockPool(0, 4, prefix_cache=True),
        lambda: pool.acquire(1),  # free: nothing to share
        lambda: pool.release(1),
        lambda: pool.register(1, PageKey(b"other", b"content")),
        lambda: pool.register(page, PageKey(b"other", b"content")),
    ):
        with pytest.raises(LedgerError):
            call()


def test_keys_of_a_prompt_leave_its_last_token() -> None:
    assert [len(prompt_keys(list(range(n)), 4, b"root")) for n in (1, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]


# --- bug family 34: a prefix hash that misses a key, or two prefixes with one hash ------------------------------------

CONTENT = ("model", "BF16", "BF16")
"""Model, precision of the weights, precision of the pages: what the engine names."""


def _root(content: tuple[str, ...] = CONTENT, page_tokens: int = 4, salt: bytes = b"") -> bytes:
    return BlockPool(2, page_tokens, prefix_cache=True, content=content).root(salt)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(_root(salt=b"tenant-b"), id="salt"),
        pytest.param(_root(("other", "BF16", "BF16")), id="model"),
        pytest.param(_root(("model", "FP16", "BF16")), id="weight precision"),
        pytest.param(_root(("model", "BF16", "INT8")), id="KV precision"),
        pytest.param(_root(page_tokens=8), id="page size"),
        pytest.param(_root(("modelB", "F16", "BF16")), id="where a part ends"),
        pytest.param(_root(("model", "BF16"), salt=b"BF16"), id="a part in the salt's place"),
        pytest.param(page_key(_root(), [9, 9, 9, 9]).digest, id="parent"),
    ],
)
def test_whatever_a_pages_content_depends_on_changes_its_digest(other: bytes) -> None:
    assert _root(salt=b"") != other
    assert page_key(_root(), [1, 2, 3, 4]).digest != page_key(other, [1, 2, 3, 4]).digest


def test_a_token_anywhere_in_a_page_changes_its_digest() -> None:
    tokens = [1, 2, 3, 4]
    others = [[t + 1 if i == at else t for i, t in enumerate(tokens)] for at in range(4)]
    others += [[1 + 2**8, 2, 3, 4], [1 + 2**24, 2, 3, 4], [2, 1, 3, 4]]
    digests = {page_key(b"root", each).digest for each in [tokens, *others]}
    assert len(digests) == 1 + len(others)


class _Collision:
    """A hash under which every content is the same."""

    def __init__(self, content: bytes) -> None:
        pass

    def digest(self) -> bytes:
        return b"the same"


def test_two_contents_with_one_digest_are_told_apart_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BlockPool(4, 4, prefix_cache=True)
    monkeypatch.setattr("kvbudget_worker.blocks.hashlib.sha256", _Collision)
    (cached,) = fill(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4, 5]) == [cached]
    assert pool.match([5, 6, 7, 8, 9]) == []
    other = pool.allocate()
    assert pool.register(other, page_key(pool.root(), [5, 6, 7, 8])) is None
    pool.release(other)
    assert (pool.match([5, 6, 7, 8, 9]), pool.cached_pages) == ([], 0)
    assert pool.match([1, 2, 3, 4, 5]) == [cached]


def test_prompts_whose_digests_collide_never_share_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner checks every slot that is read. The second page of both prompts is the same, after another first."""
    monkeypatch.setattr("kvbudget_worker.blocks.hashlib.sha256", _Collision)
    worker = Worker()
    worker.admit("a", [1, 1, 1, 1, 2, 2, 2, 2, 3], 6)
    worker.run()
    assert worker.admit("b", [0, 1, 1, 1, 2, 2, 2, 2, 3], 6).cached_tokens == 0
    assert worker.admit("again", [1, 1, 1, 1, 2, 2, 2, 2, 3], 6).cached_tokens == 4
    worker.run()
    worker.assert_empty()


# --- bug family 35: a freed page used again while a step is in flight (and the laws in test_scheduler_laws.py) --------


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("end", ["abort", "finish"])
def test_pages_freed_in_flight_wait_for_the_step(end: str, choices: int) -> None:
    """The request ends while its step runs and another one waits for its pages: it gets them after the step."""
    worker = Worker(pages=8, max_batched_tokens=16)
    worker.admit("r", range(7), 4, n=choices)
    while len(worker.step()[1]) < choices:
        pass
    batch = worker.scheduler.schedule(worker.now_ms)
    assert batch is not None
    held = {page for chunk in batch.chunks for page in chunk.pages}
    if end == "abort":
        worker.scheduler.abort("r")
    else:
        for choice in range(choices):
            worker.scheduler.finish("r", choice, "stop")
    assert all(worker.pool.refs(page) for page in held)
    assert worker.pool.held_pages == len(held)
    assert isinstance(worker.try_admit("next", range(20, 37), 4), Reject)
    worker.scheduler.apply(worker.runner.step(batch), worker.now_ms)
    worker.admit("next", range(20, 37), 4)
    worker.run()
    worker.assert_empty()
