"""``kvbudget size``: replicas by Little's law, worked by hand."""

import pytest

from support.commands import Data, Run

LOAD = ("--requests-per-second", "4", "--input-tokens", "1200", "--output-tokens", "400")
L4 = ("size", "Qwen/Qwen3-8B", "--gpu", "l4", *LOAD)


def test_the_replicas_are_those_of_littles_law(data: Data) -> None:
    """4/s × 400 × 30 ms = 48 at once; 629 pages at least × 75% ÷ 100 pages = 4 a replica; 48 ÷ 4 = 12."""
    found = data("size", *L4, "--ms-per-output-token", "30")
    assert (found["requestsAtOnce"], found["pagesPerRequest"]) == (48, 100)
    assert (found["requestsPerReplica"], found["replicas"], found["gpus"], found["boundBy"]) == (4, 12, 12, "KV")


def test_a_speed_is_the_same_as_a_time_and_the_first_token_counts(data: Data) -> None:
    slow = data("size", *L4, "--ms-per-output-token", "40")
    assert data("size", *L4, "--tokens-per-second", "25") == slow
    waiting = data("size", *L4, "--ms-per-output-token", "40", "--ms-to-first-token", "500")
    assert waiting["requestsAtOnce"] == slow["requestsAtOnce"] + 2


def test_the_engines_limit_of_requests_may_decide(data: Data) -> None:
    found = data("size", *L4, "--ms-per-output-token", "30", "--max-num-seqs", "3")
    assert (found["requestsPerReplica"], found["replicas"], found["boundBy"]) == (3, 16, "max-num-seqs")


def test_the_formula_is_shown(run: Run) -> None:
    text = run(*L4, "--ms-per-output-token", "30", "--tp", "2").stdout
    assert "requests at once = 4/s × 12 s, rounded up = 48   (Little's law)" in text
    assert "replicas = 48 ÷ 50, rounded up = 1" in text
    assert "1 replica (2 GPUs): KV decides" in text


def test_a_replica_that_does_not_fit_is_told_as_plan_tells_it(run: Run, data: Data) -> None:
    arguments = ("size", "Qwen/Qwen3-32B", "--gpu", "l4", *LOAD, "--ms-per-output-token", "30")
    assert run(*arguments).exit_code == 1
    assert data("plan", *arguments)["cause"]["name"] == "WeightsTooLarge"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give one of the two"),
        (("--ms-per-output-token", "30", "--tokens-per-second", "3"), "give one of the two"),
        (("--ms-per-output-token", "0"), "is not a number above 0"),
        (("--ms-per-output-token", "1e9999"), "is not a number above 0"),
        (("--ms-per-output-token", "30", "--max-model-len", "1000"), "1600 tokens per request are above 1000"),
        (("--ms-per-output-token", "30", "--target-percent", "3"), "not one request of 1600 tokens fits"),
        (("--ms-per-output-token", "30", "--target-percent", "101"), "not in the range"),
    ],
)
def test_bad_usage_is_named(run: Run, options: tuple[str, ...], said: str) -> None:
    result = run(*L4, *options)
    assert result.exit_code == 2
    assert said in result.stderr
