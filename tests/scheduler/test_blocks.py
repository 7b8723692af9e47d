import pytest

from kvbudget.errors import LedgerError
from kvbudget_worker.blocks import BlockPool, page_digest, prompt_digests


def fill(pool: BlockPool, tokens: list[int], salt: bytes = b"") -> list[int]:
    """Allocates and registers the full pages of a sequence."""
    pages, parent = [], salt
    for start in range(0, len(tokens) - pool.page_tokens + 1, pool.page_tokens):
        parent = page_digest(parent, tokens[start : start + pool.page_tokens])
        page = pool.allocate()
        assert pool.register(page, parent) == page
        pages.append(page)
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
    digest = page_digest(b"", [1, 2, 3, 4])
    first, second = pool.allocate(), pool.allocate()
    assert pool.register(first, digest) == first
    assert pool.register(second, digest) == first
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
    pool.register(page, b"digest")
    for call in (
        lambda: BlockPool(0, 4, prefix_cache=True),
        lambda: pool.acquire(1),  # free: nothing to share
        lambda: pool.release(1),
        lambda: pool.register(1, b"other"),
        lambda: pool.register(page, b"other"),
    ):
        with pytest.raises(LedgerError):
            call()


def test_digests_of_a_prompt_leave_its_last_token() -> None:
    assert [len(prompt_digests(list(range(n)), 4)) for n in (1, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]
