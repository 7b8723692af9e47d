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

_FAILED = pytest.StashKey[bool]()


TEST_S = 900
"""No test may take longer, however busy the host is."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(REPOSITORY / "e2e"):
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
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
    try:
        return install(cluster)
    except Exception as error:
        folder = dump(cluster, "install")
        raise AssertionError(f"the chart did not install; see {folder.relative_to(REPOSITORY)}/") from error


@pytest.fixture(scope="session")
def tiny(cluster: Cluster, chart: Installed) -> Tiny:
    """A random model of a few layers, whose pods are ready in seconds, and the class that its services use."""
    model = Tiny.prepare()
    cluster.apply(model.gpu_class())
    return model


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: Cluster, chart: Installed) -> Iterator[str]:
    """A namespace that enforces Pod Security "restricted", with the weights bound to a claim."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.apply(objects.namespace(name))
    cluster.apply(*objects.weights_volume(name))
    yield name
    if request.node.stash.get(_FAILED, False):
        folder = dump(cluster, request.node.name, name)
        request.node.add_report_section("teardown", "dump", f"see {folder.relative_to(REPOSITORY)}/")
        print(f"\nevents, logs and objects: {folder.relative_to(REPOSITORY)}/")
    cluster.delete("namespace", name, wait=False)
    cluster.delete("persistentvolume", objects.volume_name(name), wait=False)
