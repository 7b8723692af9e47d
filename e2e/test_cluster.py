"""What `make cluster-up` and `make images` leave: the ground that all else stands on."""

from typing import Any

from harness.cluster import Cluster
from harness.waiting import eventually


def test_one_of_three_nodes_advertises_two_gpus_and_is_labelled_as_feature_discovery_does(cluster: Cluster) -> None:
    nodes = {node["metadata"]["name"]: node for node in cluster.find("nodes")}
    gpus = {name: node["status"]["allocatable"].get("nvidia.com/gpu", "0") for name, node in nodes.items()}
    assert sorted(gpus.values()) == ["0", "0", "2"]
    for name, node in nodes.items():
        labels = node["metadata"]["labels"]
        has = gpus[name] != "0"
        assert labels["nvidia.com/gpu.present"] == ("true" if has else "false")
        assert labels.get("nvidia.com/gpu.count") == ("2" if has else None)


def test_the_large_worker_image_is_only_where_the_gpus_are(cluster: Cluster) -> None:
    def seen() -> bool:
        nodes = cluster.find("nodes")
        gpus = {node["metadata"]["name"] for node in nodes if "nvidia.com/gpu" in node["status"]["allocatable"]}
        assert {node["metadata"]["name"] for node in nodes if has_image(node, "kvbudget/worker:dev")} == gpus
        assert all(has_image(node, "kvbudget/operator:dev") for node in nodes)
        return True

    eventually(seen, 180, "every kubelet to tell its images")  # it looks for new ones every half minute


def has_image(node: dict[str, Any], tag: str) -> bool:
    return any(name.endswith(tag) for image in node["status"]["images"] for name in image.get("names", []))
