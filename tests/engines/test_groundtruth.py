"""The limits that the budgets must keep on measured points (bench/data), and how unreadable points are met."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import groundtruth
from scoring import leaveout, report
from scoring.cards import memory_gib
from scoring.kvchecks import H100_019, OTHERS
from scoring.models import Models
from scoring.points import Point
from scoring.rates import MINIMUM
from scoring.score import CHECKS, Score
from support.laws import share

POINTS = sorted(groundtruth.DATA.glob("points-*.jsonl"))
MODELS = Models(sorted(groundtruth.DATA.glob("models-*.jsonl")))


@pytest.fixture(scope="module")
def scores() -> list[Score]:
    return list(groundtruth.scores(groundtruth.read(POINTS), MODELS))


def of(scores: Sequence[Score], check: str, kind: str | None = None) -> list[Score]:
    return [s for s in scores if s.check == check and s.ok is not None and (kind is None or s.kind == kind)]


def errors(scores: Sequence[Score]) -> list[float]:
    return [abs(s.rel_err) for s in scores if s.rel_err is not None]


def test_every_point_has_a_score_or_says_why_not(scores: list[Score]) -> None:
    named = {score.id for score in scores}
    assert {point.ident for point, _ in groundtruth.read(POINTS)} == named
    assert all(s.skipped for s in scores if s.ok is None)
    assert len(named) == 153


def test_bytes_per_token_are_right_on_every_point_that_is_not_circular(scores: list[Score]) -> None:
    scored = of(scores, "bytes_per_token")
    assert [s.id for s in scored if not s.ok] == []
    assert len(scored) >= 105
    assert max(errors(scored)) < 0.003
    circular = {p.ident for p, _ in groundtruth.read(POINTS) if p.flag("geometry_inferred_from_log")}
    assert not circular & {s.id for s in scored}


def test_kv_memory_of_complete_runs_with_weights_as_logged(scores: list[Score]) -> None:
    found = errors(of(scores, "kv_given_weights", H100_019))
    assert len(found) >= 31
    assert statistics.fmean(found) < 0.005
    assert max(found) < 0.03


def test_kv_memory_of_complete_runs_with_weights_predicted(scores: list[Score]) -> None:
    found = errors(of(scores, "kv_predicted_weights", H100_019))
    assert len(found) >= 31
    assert statistics.fmean(found) < 0.01
    assert max(found) < 0.04


NEARLY_FULL_OF_WEIGHTS = ("dsv4-gh200-44376", "sglang-24523-dsv4pro")
"""DeepSeek-V4 with a twentieth of the card for KV: 2% of weights are half of it. Why they weigh more is not known."""


@pytest.mark.parametrize(("check", "runs"), [("kv_given_weights", 12), ("kv_predicted_weights", 13)])
def test_kv_memory_of_other_versions_engines_and_cards(scores: list[Score], check: str, runs: int) -> None:
    scored = of(scores, check, OTHERS)
    found = errors([s for s in scored if check == "kv_given_weights" or s.id not in NEARLY_FULL_OF_WEIGHTS])
    assert len(found) >= runs
    assert statistics.median(found) < 0.04
    assert statistics.fmean(found) < 0.05
    assert sum(bool(s.inside) for s in scored) >= 0.9 * len(scored)


def test_predicted_weights_that_nearly_fill_the_card_leave_a_kv_that_only_the_band_tells(scores: list[Score]) -> None:
    scored = of(scores, "kv_predicted_weights", OTHERS)
    assert statistics.fmean(errors(scored)) < 0.14
    assert {s.id: s.inside for s in scored if abs(s.rel_err or 0) > 0.12} == dict.fromkeys(NEARLY_FULL_OF_WEIGHTS, True)


def test_blocks_and_concurrency_of_hybrid_models_are_exact(scores: list[Score]) -> None:
    scored = of(scores, "hybrid_blocks")
    assert [s.id for s in scored if not s.ok] == []
    assert {s.kind for s in scored} == {"sliding+full", "gdn+full", "compressed"}
    assert len(scored) >= 10


def test_verdicts_are_right_and_no_run_that_fits_is_refused(scores: list[Score]) -> None:
    scored = of(scores, "fits")
    assert [s.id for s in scored if not s.ok] == []
    words = {s.verdict.partition(":")[0] for s in scored}
    assert words == {"fits", "at risk", "KV too small"}
    ran = {p.ident for p, _ in groundtruth.read(POINTS) if p.flag("fits")}
    assert {s.verdict.partition(":")[0] for s in scored if s.id in ran} == {"fits"}


def test_runs_that_planned_their_pool_and_then_died_are_at_risk(scores: list[Score]) -> None:
    at_risk = {s.id: s.verdict for s in of(scores, "fits") if s.verdict.startswith("at risk")}
    assert set(at_risk) == {"vllm-57475-5090l", "sglang-39713-graph-oom"}
    assert all("outside the engine's share" in reason for reason in at_risk.values())


def test_the_largest_batch_of_tensorrt_llm(scores: list[Score]) -> None:
    scored = of(scores, "trtllm_batch")
    assert len(scored) == 36
    for score in scored:
        assert score.predicted is not None
        assert score.logged is not None
        assert abs(score.predicted - score.logged) <= max(1, 0.02 * score.logged), score.id


def test_constants_fitted_without_a_model_predict_it_as_well() -> None:
    found = leaveout.run([p for p, wrong in groundtruth.read(POINTS) if not wrong], MODELS)
    for key in ("weights as logged", "weights predicted"):
        figures = found[key]
        assert isinstance(figures, dict)
        assert figures["left_out"] <= 1.5 * figures["in_sample"]


def test_peers_are_in_the_same_table_and_further_off(scores: list[Score]) -> None:
    row = report.summary(scores)[f"kv_given_weights | {H100_019}"]
    peers, mean = row["peers"], row["mean"]
    assert isinstance(peers, dict)
    assert isinstance(mean, float)
    assert set(peers) == {"KAITO", "llm-d-planner", "all layers"}
    assert all(figures["mean"] > 10 * mean for figures in peers.values())


def test_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    groundtruth.main(["--json", "--points", *map(str, POINTS)])
    document = json.loads(capsys.readouterr().out)
    promised = {"id", "check", "predicted", "low", "high", "logged", "rel_err", "ok", "verdict", "skipped"}
    assert all(promised == set(entry) for entry in document["points"])
    assert {entry["check"] for entry in document["points"]} == set(CHECKS)
    assert set(CHECKS) <= set(document["summary"])


def test_a_line_for_every_score(scores: list[Score]) -> None:
    assert all("\n" not in report.line(score) for score in scores)


def test_lines_that_cannot_be_read_are_named_and_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = tmp_path / "points.jsonl"
    points.write_text('not json\n[1]\n{"id":"only a name"}\n\n{"id":"x","engine":"ollama","model":"nobody/nothing"}\n')
    assert groundtruth.main(["--points", str(points)]) == 0
    out = capsys.readouterr().out
    assert "line 1  bytes_per_token  skipped: no JSON" in out
    assert "line 2  bytes_per_token  skipped: no object" in out
    assert "only a name  bytes_per_token  skipped: the model is not named" in out
    assert "geometry of nobody/nothing is not in the models file" in out


def test_a_file_that_is_not_there_is_an_error_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert groundtruth.main(["--points", "nowhere.jsonl"]) == 2
    assert capsys.readouterr().err == "nowhere.jsonl: no such file; give files of JSON lines\n"


def test_one_ranks_memory_beside_the_minimum_ranks_tokens_is_named() -> None:
    raw = {
        "id": "ranks", "engine": "vllm", "facts_model": "Qwen/Qwen3-8B", "tp": 1, "available_kv_gib": 20.0,
        "kv_tokens": 120000, "adds_up_why": "min over ranks/stages: two ranks", "check": {},
    }  # fmt: skip
    found = {s.check: s for s in groundtruth.scores([(Point(raw), "")], MODELS)}
    assert found["bytes_per_token"].skipped == MINIMUM
    assert found["bytes_per_token"].ok is None


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"tp": 0}, "tp 0 is no whole number of 1 or more"),
        ({"pp": 1.5}, "pp 1.5 is no whole number of 1 or more"),
        ({"kv_dtype": "turboquant"}, "kv_dtype 'turboquant' is not a format whose bytes are known"),
        ({"kv_dtype": "mxfp8"}, "kv_dtype 'mxfp8' is not a format whose bytes are known"),
    ],
)
def test_a_setting_that_means_nothing_here_is_no_default(told: dict[str, object], reason: str) -> None:
    raw = {"id": "p", "engine": "vllm", "facts_model": "Qwen/Qwen3-8B", "available_kv_gib": 20.0, "kv_tokens": 145632}
    found = list(groundtruth.scores([(Point(raw | told), "")], MODELS))
    assert reason in {s.skipped for s in found}
    assert {s.ok for s in found} == {None}


@pytest.mark.parametrize(
    ("label", "wanted"),
    [("fp8_e4m3", "FP8E4M3"), ("fp8_e5m2", "FP8E4M3"), ("int8_per_token_head", "INT8"), ("float8_e4m3fn", "FP8E4M3"),
     ("nvfp4", "NVFP4"), ("half", "FP16"), ("float", "FP32"), ("torch.bfloat16", "BF16"), ("auto", None)],
)  # fmt: skip
def test_spellings_of_kv_formats(label: str, wanted: str | None) -> None:
    point = Point({"kv_dtype": label})
    assert (point.kv_format, point.unread) == (wanted, "")


@pytest.mark.parametrize(
    ("label", "gib"),
    [("H100 MIG 3g.40gb", None), ("RTX 4090 D 48GB", None), ("RTX 5090 Laptop 24GB", None), ("H20-3e 141GB", None),
     ("GH200", None), ("A100", None), ("GH200 480GB", 94.5), ("Ascend NPU 64GB (61.27 GiB)", 61.27),
     ("MI210 64GB", 64.0), ("V100 16GB", 15.8), ("8x H200 141GB", 139.8)],
)  # fmt: skip
def test_a_cards_name_is_its_memory_only_where_one_card_has_it(label: str, gib: float | None) -> None:
    found = memory_gib(Point({"gpu": label}))
    assert found == (None if gib is None else pytest.approx(gib, abs=0.05))


def test_numbers_written_as_strings_are_read() -> None:
    point = Point({"gpu_total_gib": "79.2", "kv_tokens": "184,752", "available_kv_gib": "12 GiB"})
    assert (point.number("gpu_total_gib"), point.whole("kv_tokens"), point.kv_gib) == (79.2, 184752, None)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=12), st.just({}), st.just([1])
)
SAMPLES = [dict(point.raw) for point, _ in groundtruth.read(POINTS)]
KEYS = sorted({key for sample in SAMPLES for key in sample})


@share(2.0)
@given(st.sampled_from(SAMPLES), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), st.sampled_from(SAMPLES))
def test_points_with_wrong_or_mixed_values_never_crash(
    sample: dict[str, object], wrong: dict[str, object], other: dict[str, object]
) -> None:
    for raw in ({**sample, **wrong}, {**other, **{k: v for k, v in sample.items() if k in wrong}}):
        for score in groundtruth.scores([(Point(raw), "")], MODELS):
            assert score.ok is not None or score.skipped
