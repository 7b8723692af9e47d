"""The chart, rendered with real helm."""

import copy
import os

import pytest

from support.helmchart import HELM, Chart, Object


@pytest.fixture(scope="session")
def chart() -> Chart:
    if not os.access(HELM, os.X_OK):
        pytest.fail(f"{HELM} is missing; run: make cluster-binaries")
    return Chart()


@pytest.fixture(scope="session")
def _rendered(chart: Chart) -> list[Object]:
    return chart.render()


@pytest.fixture
def rendered(_rendered: list[Object]) -> list[Object]:
    """The objects of the chart with its own values; a copy of the test's own."""
    return copy.deepcopy(_rendered)
