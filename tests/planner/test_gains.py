"""Remedies: each works when applied, none is larger than needed by one step, combinations where nothing else does."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.engines import Settings
from kvbudget.gpu import CATALOGUE
from kvbudget.planner import steps
from kvbudget.planner.gains import Remedy, remedies
from kvbudget.planner.question import Answer, Question, ask, catalogue_device
from kvbudget.planner.steps import Change
from kvbudget.planner.weightformats import stored_as
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts
from support.laws import share

NAMES = ("t4-16gb", "l4-24gb", "l40s-48gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb", "mi300x-192gb")
DEVICES = tuple(catalogue_device(name, CATALOGUE[name]) for name in NAMES)
MODELS = {
    name: from_config(facts(name), name=name)
    for name in (
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-32B",
        "meta-llama/Llama-3.3-70B-Instruct",
        "google/gemma-3-27b-it",
        "Qwen/Qwen3-30B-A3B",
        "deepseek-ai/DeepSeek-V3",
        "Qwen/Qwen3.6-27B",
        "openai/gpt-oss-20b",
    )
}
QUESTIONS = st.builds(
    lambda name, device, engine, requests, prompt, settings: Question(
        model=name, shape=MODELS[name], device=device, engine=engine, settings=settings, requests=requests,
        input_tokens=prompt,
    ),
    st.sampled_from(tuple(MODELS)),
    st.sampled_from(DEVICES),
    st.sampled_from(("vllm", "vllm", "sglang", "tensorrt_llm")),
    st.sampled_from((1, 1, 8, 300)),
    st.sampled_from((None, 128)),
    st.builds(
        Settings,
        max_model_len=st.sampled_from((2048, 16384, 40960)),
        memory_fraction=st.sampled_from((None, 0.7, 0.9, 0.97)),
        tensor_parallel=st.sampled_from((1, 1, 2, 3)),
        kv_format=st.sampled_from((None, None, "FP8E4M3")),
    ),
)  # fmt: skip


def changed(question: Question, changes: Sequence[Change]) -> Answer:
    """The plan with the options of a remedy, set by hand."""
    for option, value in changes:
        if option == "--gpu":
            question = replace(question, device=next(d for d in DEVICES if d.name == value))
        elif option == "--weight-precision":
            question = replace(question, shape=stored_as(question.shape, str(value)))
        else:
            name = {
                "--max-model-len": "max_model_len", "--kv-precision": "kv_format", "--utilization": "memory_fraction",
                "--max-num-seqs": "max_sequences", "--max-batched-tokens": "max_batched_tokens",
                "--tp": "tensor_parallel", "--pp": "pipeline_parallel", "max_tokens": "max_model_len",
            }[option]  # fmt: skip
            if option == "max_tokens":
                value = int(value) + (question.input_tokens or 0)
            question = replace(question, settings=replace(question.settings, **{name: value}))  # type: ignore[arg-type]
    return ask(question)


def smaller(answer: Answer, changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """The changes with one of them left out, or a step back."""
    told = answer.told
    for index, (option, value) in enumerate(changes):
        rest = [*changes[:index], *changes[index + 1 :]]
        if option == "--pp":  # goes with --tp
            continue
        if option == "--tp":
            rest = [change for change in rest if change[0] != "--pp"]
        yield rest
        back: list[str | int | float] = []
        if option == "--max-model-len" and int(value) + 1 < answer.budget.max_model_len:
            back = [int(value) + 1]
        elif option in ("--max-num-seqs", "--max-batched-tokens"):
            most = told.max_sequences if option == "--max-num-seqs" else told.max_batched_tokens
            back = [min(2 * int(value) + 1, most or 0)]
        elif option == "--weight-precision" and value == "INT4":
            back = ["FP8"]
        elif option == "--utilization":
            used, found = told.memory_fraction or 1.0, float(value)
            step = found - 0.01 if found > used else found + 0.01
            back = [round(step, 2)] if min(used, found) < step < max(used, found) else []
        elif option == "--gpu":
            sizes = sorted(DEVICES, key=lambda d: d.card.memory_bytes)
            place = next(i for i, d in enumerate(sizes) if d.name == value)
            back = [d.name for d in sizes[:place] if d.maker == answer.question.device.maker]
        elif option == "--tp" and all(change[0] != "--pp" for change in changes):
            back = list(range(told.tensor_parallel if answer.verdict != "refused" else 1, int(value)))
        yield from ([*rest, (option, other)] for other in back)


def found_for(question: Question) -> tuple[Answer, tuple[Remedy, ...]]:
    answer = ask(question)
    return answer, remedies(answer, DEVICES)


@share(0.15)
@given(QUESTIONS)
def test_every_remedy_that_is_offered_fits_and_is_no_larger_than_needed_by_one_step(question: Question) -> None:
    answer, found = found_for(question)
    for remedy in found:
        assert (changed(question, remedy.changes).verdict == "fits") is remedy.fits, remedy.text
        assert remedy.fits or remedy.answer.concurrency()[0] > answer.concurrency()[0]
        needed = remedy.fits and answer.verdict != "fits" and remedy.changes[0][0] != "max_tokens"
        for less in smaller(answer, remedy.changes) if needed else ():
            assert changed(question, less).verdict != "fits", (remedy.text, less)


def asked(name: str, device: str, requests: int = 1, **told: object) -> Question:
    gpu = next(d for d in DEVICES if d.name == device)
    settings = Settings(**told)  # type: ignore[arg-type]
    return Question(
        model=name,
        shape=MODELS[name],
        device=gpu,
        engine="vllm",
        settings=settings,
        requests=requests,
        input_tokens=4000,
    )


def test_where_no_single_change_does_the_smallest_combination_is_told_with_what_each_adds() -> None:
    answer, found = found_for(asked("google/gemma-3-27b-it", "l4-24gb", 300, max_model_len=40960))
    assert answer.verdict == "does not fit"
    (only,) = [r for r in found if r.fits]
    (gpus, first), (shorter, second) = only.parts
    assert only.text == f"{gpus} and {shorter}"
    assert gpus.startswith("--tp ")
    assert first.startswith("0 → ")
    assert shorter.startswith("lower --max-model-len to ")
    assert second.endswith("; 300 requests of that length fit at once")


def test_a_smaller_format_allows_a_longer_request_than_shortening_alone() -> None:
    _, found = found_for(asked("Qwen/Qwen3-8B", "l4-24gb", max_model_len=40960))
    by_options = {tuple(option for option, _ in r.changes): dict(r.changes) for r in found if r.fits}
    alone = by_options[("--max-model-len",)]["--max-model-len"]
    both = by_options[("--kv-precision", "--max-model-len")]
    assert both["--kv-precision"] == "FP8E4M3"
    assert int(both["--max-model-len"]) >= 2 * int(alone)


@pytest.mark.parametrize(
    ("device", "engine", "version", "names"),
    [
        ("h100-80gb", "vllm", None, ["FP8", "INT4"]),
        ("t4-16gb", "vllm", "0.19", ["FP8", "INT4"]),
        ("t4-16gb", "vllm", "0.12", []),
        ("a100-80gb", "tensorrt_llm", None, ["INT4"]),
        ("a100-80gb", "bundled", None, ["INT4"]),
        ("mi300x-192gb", "vllm", None, ["FP8", "INT4"]),
    ],
)
def test_smaller_weights_are_tried_where_the_engine_loads_them(
    device: str, engine: str, version: str | None, names: list[str]
) -> None:
    question = replace(asked("Qwen/Qwen3-8B", device, max_model_len=8192), engine=engine, version=version)
    assert [step.changes[0][1] for step in steps.weight_formats(ask(question))] == names


def test_weights_that_a_card_cannot_run_are_led_back_to_16_bits() -> None:
    question = asked("Qwen/Qwen3-8B", "t4-16gb", max_model_len=512, tensor_parallel=4, memory_fraction=0.8)
    eight = replace(question, shape=stored_as(question.shape, "FP8"), version="0.12")
    answer, found = found_for(eight)
    assert (answer.verdict, "FP8" in answer.reason) == ("refused", True)
    assert ("--weight-precision", "BF16") in {change for r in found if r.fits for change in r.changes}
