"""vLLM's cache groups: window cases worked by hand, and models whose logs print blocks and concurrency."""

import pytest

from kvbudget.engines.cachegroups import PoolOptions, group_size, pool_of
from kvbudget.layers import AttentionCache, Cache, StateCache
from support.architectures import CHUNKED, FULL, LATENT, SLIDING, STATE


def options(**changes: object) -> PoolOptions:
    told: dict[str, object] = {"kv_format": "BF16", "block_tokens": 16, "in_flight_tokens": 8192, **changes}
    return PoolOptions(**told)  # type: ignore[arg-type]


def attention(kv_heads: int, dim: int, window: int | None = None, chunk: int | None = None) -> AttentionCache:
    return AttentionCache(kv_heads=kv_heads, head_dim=dim, v_head_dim=dim, window=window, chunk=chunk)


def gdn(value_heads: int, key_heads: int = 16) -> StateCache:
    channels = 2 * key_heads * 128 + value_heads * 128
    return StateCache(
        kind="gdn", conv_channels=channels, group_channels=0, state_groups=0, conv_steps=3, heads=value_heads,
        state_per_head=128 * 128, conv_dtype="BF16", state_dtype="FP32",
    )  # fmt: skip


def mixed(full: Cache, many: Cache, counts: tuple[int, int]) -> list[Cache]:
    return [full] * counts[0] + [many] * counts[1]


@pytest.mark.parametrize(
    ("window", "in_flight", "window_pages"),
    [  # ceil((window - 1 + in flight) / 16) + 1
        (512, 8192, 545),
        (513, 8192, 545),
        (514, 8192, 546),
        (1024, 8192, 577),
        (4096, 8192, 769),
        (512, 2048, 161),
        (1024, 2048, 193),
        (4096, 2048, 385),
        (4096, 200_000, 8193),
    ],
)
def test_a_window_at_128k_keeps_the_window_and_what_is_in_flight(
    window: int, in_flight: int, window_pages: int
) -> None:
    layers = mixed(attention(8, 128), attention(8, 128, window=window), (10, 50))
    pool = pool_of(layers, options=options(in_flight_tokens=in_flight))
    assert [group.layers for group in pool.groups] == [10] * 6
    assert pool.pages_for(131072) == 131072 // 16 + 5 * window_pages


GEMMA_2_27B = mixed(attention(16, 128), attention(16, 128, 4096), (23, 23))
GEMMA_2_9B = mixed(attention(8, 256), attention(8, 256, 4096), (21, 21))
GEMMA_3_12B = mixed(attention(8, 256), attention(8, 256, 1024), (8, 40))
GEMMA_3_27B = mixed(attention(16, 128), attention(16, 128, 1024), (10, 52))
QWEN_3_6_35B = mixed(attention(2, 256), gdn(32), (10, 30))


@pytest.mark.parametrize(
    ("layers", "changes", "page_bytes", "length", "pages", "logged_blocks", "logged_concurrency"),
    [
        (GEMMA_2_27B, {}, 3014656, 8192, 1025, 7335, 7.16),
        (GEMMA_2_9B, {}, 2752512, 8192, 1025, 21110, 20.6),
        (GEMMA_3_12B, {}, 1048576, 8192, 3077, 48867, 15.88),
        (GEMMA_3_27B, {}, 1310720, 8192, 3590, 15997, 4.46),
        (QWEN_3_6_35B, {"kv_format": "FP8E4M3", "prefix_caching": True}, 21463040, 131072, 69, 299, 4.33),
    ],
)
def test_models_whose_logs_print_blocks_and_concurrency(
    layers: list[Cache],
    changes: dict[str, object],
    page_bytes: int,
    length: int,
    pages: int,
    logged_blocks: int,
    logged_concurrency: float,
) -> None:
    pool = pool_of(layers, options=options(**changes))
    assert (pool.page_bytes, pool.pages_for(length)) == (page_bytes, pages)
    assert round(logged_blocks / pages, 2) == logged_concurrency


def test_speculation_adds_a_layer_to_the_full_group_and_states_to_every_request() -> None:
    """Qwen3.6-27B, 3 speculative tokens, 2 ranks: 16 + 1 full layers, 48 states; logged 424 to 426 blocks / 179."""
    layers = mixed(attention(4, 256), gdn(48), (17, 48))
    told = options(kv_format="FP8E4M3", tensor_parallel=2, prefix_caching=True, draft_tokens=3)
    pool = pool_of(layers, options=told)
    assert [(g.kind, g.layers) for g in pool.groups] == [("full", 17), ("gdn", 16), ("gdn", 16), ("gdn", 16)]
    assert pool.groups[0].block_tokens == 1600
    assert pool.pages_for(262144) == 164 + 3 * 5 == 179


def test_the_attention_block_grows_until_its_page_holds_a_state() -> None:
    """Qwen3.5-9B on 2 ranks logged 1868 blocks of 528 tokens, 169.82 requests of 4096 tokens."""
    pool = pool_of(mixed(attention(4, 256), gdn(32), (8, 24)), options=options(tensor_parallel=2))
    assert {group.block_tokens for group in pool.groups} == {528}
    assert pool.page_bytes == 8 * 528 * 2048
    assert pool.pages_for(4096) == 8 + 3
    assert round(1868 / 11, 2) == 169.82


@pytest.mark.parametrize(
    ("counts", "size"), [([10, 52], 10), ([12, 13], 13), ([12, 18], 12), ([12, 17], 17), ([5, 29], 5), ([7], 7)]
)
def test_the_size_of_a_group(counts: list[int], size: int) -> None:
    assert group_size(counts) == size


def test_layers_that_all_keep_everything_are_one_group_whatever_their_widths() -> None:
    pool = pool_of([FULL, attention(2, 64), LATENT], options=options())
    assert [group.layers for group in pool.groups] == [3]
    assert pool.page_bytes == 16 * (4096 + 512 + 1152)


def test_layers_with_one_window_are_one_group_that_is_bounded() -> None:
    pool = pool_of([SLIDING] * 4, options=options(in_flight_tokens=2048))
    assert pool.pages_for(131072) == pool.pages_for(10_000) == -(-(1023 + 2048) // 16) + 1


def test_a_chunk_keeps_itself_and_what_is_in_flight() -> None:
    pool = pool_of([CHUNKED, CHUNKED, CHUNKED, FULL], options=options())
    assert pool.pages_for(131072) == 8192 + 3 * (8192 + 8192) // 16


def test_layers_of_other_widths_get_blocks_so_that_pages_are_equal() -> None:
    """Gemma 4: 8 heads of 256 with a window, 2 heads of 512 without: half the bytes per token, twice the block."""
    pool = pool_of([attention(8, 256, 1024)] * 5 + [attention(2, 512)], options=options())
    assert {(g.kind, g.block_tokens) for g in pool.groups} == {("sliding", 16), ("full", 32)}


def test_without_hybrid_groups_a_window_saves_nothing() -> None:
    layers = [FULL, SLIDING, SLIDING]
    pool = pool_of(layers, options=options(hybrid_groups=False))
    assert (len(pool.groups), pool.pages_for(131072)) == (1, 8192)


def test_stages_have_the_same_groups_and_pages_of_their_own_layers() -> None:
    layers = mixed(FULL, SLIDING, (2, 4))
    first, second = (pool_of(layers, options=options(), first=a, last=b) for a, b in ((0, 3), (3, 6)))
    assert first.groups == second.groups
    assert (first.page_bytes, second.page_bytes) == (2 * 65536, 2 * 65536)


def test_a_model_that_keeps_nothing_has_no_pool() -> None:
    with pytest.raises(ValueError, match="keeps anything"):
        pool_of([], options=options())


def test_states_are_one_page_or_two_with_prefix_caching() -> None:
    for caching, pages in ((False, 1), (True, 2)):
        pool = pool_of([FULL, STATE], options=options(prefix_caching=caching))
        assert [g.state_pages for g in pool.groups] == [None, pages]
