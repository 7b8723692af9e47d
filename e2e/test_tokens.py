"""Refusal by tokens: what counts is the pages that requests reserve, not how many requests there are."""

from itertools import islice

import httpx

from harness.cluster import Cluster
from harness.tiny import MAX_MODEL_LEN, NAME, POOL_TOKENS, Tiny, start_tiny
from harness.tokens import Pool, check_never_over, pools, wait_all_free
from harness.waiting import eventually
from loadgen import Job, load, mixed_jobs, run_to_end

LONG = Job(prompt_tokens=48, output_tokens=976)
LONG_TOKENS = LONG.prompt_tokens + LONG.output_tokens
"""Whole pages, so that this is exactly what it reserves."""


def test_mixed_load_never_overflows_the_pool_and_gives_all_of_it_back(
    cluster: Cluster, namespace: str, tiny: Tiny
) -> None:
    url = start_tiny(cluster, namespace, tiny, replicas=1)
    sampled: list[Pool] = []
    with load(url, NAME, islice(mixed_jobs(), 90), concurrency=90) as running:
        while running.running:
            sampled += pools(cluster, NAME, namespace)
    report = running.report()
    print(*report.lines(), sep="\n")

    assert not report.errors
    assert not report.lost
    assert report.complete == 90
    assert report.refused > 0
    assert all(0 < wait_ms <= 120_000 for wait_ms in report.refusals)
    check_never_over(sampled)
    assert max(pool.reserved for pool in sampled) > POOL_TOKENS // 2
    wait_all_free(cluster, NAME, namespace)


def test_few_long_requests_are_refused_where_many_short_ones_are_not(
    cluster: Cluster, namespace: str, tiny: Tiny
) -> None:
    url = start_tiny(cluster, namespace, tiny, replicas=1)
    many = [Job(prompt_tokens=16, output_tokens=48, seed=number) for number in range(100)]
    assert sum(job.prompt_tokens + job.output_tokens for job in many) <= POOL_TOKENS
    assert run_to_end(url, NAME, many, concurrency=len(many)).admitted_at_once == len(many)

    wait_all_free(cluster, NAME, namespace)
    fitting = POOL_TOKENS // LONG_TOKENS
    few = [Job(LONG.prompt_tokens, LONG.output_tokens, seed=number) for number in range(fitting + 2)]
    report = run_to_end(url, NAME, few, concurrency=len(few))
    assert report.admitted_at_once == fitting
    assert report.complete == len(few)


def test_a_request_that_never_fits_is_a_400_and_not_worth_a_retry(cluster: Cluster, namespace: str, tiny: Tiny) -> None:
    url = start_tiny(cluster, namespace, tiny, replicas=1)
    body = {"model": NAME, "prompt": LONG.prompt(), "max_tokens": MAX_MODEL_LEN}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30, trust_env=False)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.headers["x-should-retry"] == "false"


def test_a_client_that_goes_away_gives_its_pages_back(cluster: Cluster, namespace: str, tiny: Tiny) -> None:
    url = start_tiny(cluster, namespace, tiny, replicas=1)
    body = {
        "model": NAME,
        "prompt": LONG.prompt(),
        "max_tokens": LONG.output_tokens,
        "stream": True,
        "ignore_eos": True,
    }
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30, trust_env=False) as answer:
        lines = answer.iter_lines()  # kept, since dropping it closes the stream
        next(lines)
        eventually(
            lambda: any(pool.reserved == LONG_TOKENS for pool in pools(cluster, NAME, namespace)),
            60,
            "the reservation to show",
        )
    wait_all_free(cluster, NAME, namespace)
