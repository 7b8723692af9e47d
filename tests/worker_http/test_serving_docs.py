"""docs/serving.md tells what is true: its metrics, routes, refusals and headers are those of the code."""

import re
from pathlib import Path

from kvbudget import contract
from kvbudget_worker.http.app import routes
from kvbudget_worker.http.info import InfoEndpoints
from kvbudget_worker.http.service import Service
from kvbudget_worker.lifecycle import Lifecycle
from kvbudget_worker.refusals import CODES
from support.scripted import make_plan

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table under a heading, without its head."""
    section = TEXT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_metrics_table() -> None:
    told = [(name.strip("`"), kind, labels, meaning) for name, kind, labels, meaning in rows("Metrics")]
    common = {"model_name", "engine"}
    assert told == [
        (m.name, m.type, ", ".join(f"`{label}`" for label in m.labels if label not in common), m.help)
        for m in contract.WORKER_METRICS
    ]


def test_routes_table() -> None:
    told = {
        path.replace("{name}", "{name:path}") for cells in rows("Routes") for path in re.findall(r"/[^`]+", cells[0])
    }
    service = Service(make_plan(), Lifecycle())
    assert told == {route.path for route in routes(service, InfoEndpoints(service))}


def test_refusal_table() -> None:
    told = [cells[3] for cells in rows("Refusals")]
    assert sorted(code.split(" ")[0] for code in told if not code.startswith("–")) == sorted(
        set(CODES) - {"invalid_request"}
    )


def test_headers_are_named() -> None:
    for header in (
        contract.HEADER_OUTPUT_LIMIT,
        contract.HEADER_DROP_REASON,
        contract.HEADER_REQUEST_ID,
        contract.HEADER_SHOULD_RETRY,
        contract.HEADER_RETRY_AFTER_MS,
        contract.HEADER_LIMIT_TOKENS,
        contract.HEADER_REMAINING_TOKENS,
        contract.HEADER_RESET_TOKENS,
    ):
        assert header in TEXT, header
