"""What cannot work is refused at apply, by the real API server, with the arithmetic and what would fit."""

import pytest

from harness.cluster import REPOSITORY, Cluster, CommandError
from harness.tiny import Tiny

EXAMPLES = REPOSITORY / "examples"


def test_the_impossible_example_is_refused_with_arithmetic(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-f", str(EXAMPLES / "gpuclass.yaml"))
    with pytest.raises(CommandError) as refused:
        cluster.kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / "impossible.yaml"))
    for part in ("spec.maxModelLen: 131072 tokens need", "pages", "weights", "Fits: maxModelLen ≤"):
        assert part in refused.value.output
    assert cluster.find("llmservices", namespace) == []


def test_an_unknown_class_is_refused_by_name(cluster: Cluster, namespace: str, tiny: Tiny) -> None:
    with pytest.raises(CommandError, match=r"spec\.gpu\.class: .*no-such-class"):
        cluster.apply(tiny.service("chat", namespace, gpu={"class": "no-such-class"}))


def test_all_errors_come_in_one_answer(cluster: Cluster, namespace: str, tiny: Tiny) -> None:
    wrong = tiny.service(
        "chat", namespace, maxModelLen=1_000_000, router={"replicas": 2}, kvCache={"overcommitPercent": 150}
    )
    with pytest.raises(CommandError) as refused:
        cluster.apply(wrong)
    for path in ("spec.maxModelLen", "spec.router", "spec.kvCache.overcommitPercent"):
        assert path in refused.value.output
    assert "not supported yet" in refused.value.output


def test_an_unchanged_fit_is_admitted_as_a_dry_run(cluster: Cluster, namespace: str, tiny: Tiny) -> None:
    assert "created" in cluster.apply(tiny.service("chat", namespace), dry_run=True)
    assert cluster.find("llmservices", namespace) == []
