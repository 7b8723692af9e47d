"""What `make cluster-up` and `make images` leave: the ground that all else stands on."""

from harness.cluster import Cluster


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
    for node in cluster.find("nodes"):
        names = {name for image in node["status"]["images"] for name in image.get("names", [])}
        has_worker = any(name.endswith("kvbudget/worker:dev") for name in names)
        assert has_worker == ("nvidia.com/gpu" in node["status"]["allocatable"]), node["metadata"]["name"]
