"""What the workers say of their KV tokens, sampled while a load runs."""

from dataclasses import dataclass

import httpx

from harness.cluster import Cluster
from harness.waiting import eventually


@dataclass(frozen=True, slots=True)
class Pool:
    """KV tokens of one worker at one moment."""

    pod: str
    total: int
    reserved: int
    used: int


def pools(cluster: Cluster, service: str, namespace: str) -> list[Pool]:
    """Of every worker that answers and has loaded its model: before that it has no pool."""
    found = []
    for pod in cluster.pods_of(service, namespace):
        name = pod["metadata"]["name"]
        try:
            samples = cluster.metrics(name, namespace)
        except httpx.HTTPError:
            continue
        pool = Pool(
            name,
            int(samples["kvbudget_kv_tokens"]),
            int(samples["kvbudget_kv_tokens_reserved"]),
            int(samples["kvbudget_kv_tokens_used"]),
        )
        if pool.total:
            found.append(pool)
    return found


def check_never_over(sampled: list[Pool]) -> None:
    """The law of the pool: used ≤ reserved ≤ total."""
    for pool in sampled:
        assert 0 <= pool.used <= pool.reserved <= pool.total, pool


def wait_all_free(cluster: Cluster, service: str, namespace: str, timeout_s: float = 60) -> None:
    """Waits until no worker holds a reserved token."""

    def check() -> bool:
        now = pools(cluster, service, namespace)
        assert now, "no worker answers"
        assert all(pool.reserved == 0 and pool.used == 0 for pool in now), now
        return True

    eventually(check, timeout_s, "every page to be free")
