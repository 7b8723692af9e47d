"""The cluster of ``make cluster-up``, the chart installed once, and a restricted namespace per test.

A test that fails leaves events, logs and objects in build/e2e-dump/<test>/ and says where.
"""

import uuid
from collections.abc import Generator, Iterator

import pytest

from harness import objects
from harness.cluster import REPOSITORY, Cluster, NoClusterError
from harness.dump import dump
from harness.install import Installed, install
from harness.tiny import Tiny

TEST_S = 900
"""No test may take longer, however busy the host is."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(REPOSITORY / "e2e"):
            item.add_marker(pytest.mark.timeout(TEST_S))
    items.sort(key=lambda item: item.get_closest_marker("replaces_cluster") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fixtures: dict[str, object] = getattr(item, "funcargs", {})
    opened, namespace = fixtures.get("cluster"), fixtures.get("namespace")
    if report.failed and report.when != "teardown" and isinstance(opened, Cluster):
        folder = dump(opened, item.name, *([namespace] if isinstance(namespace, str) else []))
        report.sections.append(("events, logs and objects", f"{folder.relative_to(REPOSITORY)}/"))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The kind cluster. Without one the whole run ends, with the next command."""
    try:
        with Cluster() as opened:
            yield opened
    except NoClusterError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture(scope="session")
def chart(cluster: Cluster) -> Installed:
    """The chart, installed from nothing."""
    return install(cluster)


@pytest.fixture(scope="session")
def tiny(cluster: Cluster, chart: Installed) -> Tiny:
    """A random model of a few layers, whose pods are ready in seconds, and the class that its services use."""
    model = Tiny.prepare()
    cluster.apply(model.gpu_class())
    return model


@pytest.fixture
def namespace(cluster: Cluster, chart: Installed) -> Iterator[str]:
    """A namespace that enforces Pod Security "restricted", with the weights bound to a claim."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.apply(objects.namespace(name))
    cluster.apply(*objects.weights_volume(name))
    yield name
    cluster.delete("namespace", name, wait=False)
    cluster.delete("persistentvolume", objects.volume_name(name), wait=False)
