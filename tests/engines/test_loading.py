"""Which weights an engine loads on which card, per version; and what it does where the card lacks the instructions."""

from dataclasses import replace

import pytest

from kvbudget.engines import Card, EngineBudget, Settings, budget
from kvbudget.engines.result import gib
from kvbudget.layers import WeightFormat, uniform
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts
from support.architectures import FULL, decoder

LLAMA = from_config(facts("meta-llama/Meta-Llama-3.1-8B"))
CARDS = {"v100": (7, 0), "t4": (7, 5), "a100": (8, 0), "l4": (8, 9), "h100": (9, 0), "b200": (10, 0), "mi300x": None}


def made(card: str, weights: str, engine: str, version: str | None = None, *, experts: int = 0) -> EngineBudget:
    form = LLAMA.weights if weights == "BF16" else uniform(weights, 8000)
    shape = replace(decoder([FULL], experts=experts) if experts else LLAMA, weights=form)
    device = Card(name=card, memory_bytes=gib(80), compute_capability=CARDS[card])
    return budget(shape, device, engine, version, Settings(max_model_len=1024))


REFUSED = [
    ("v100", "BF16", "vllm", "0.20", "has kernels from compute capability 7.5 on, and v100 has 7.0"),
    ("v100", "FP8", "vllm", "0.19", "loads FP8 weights from compute capability 7.5 on"),
    ("v100", "AWQ-INT4", "vllm", "0.19", "loads AWQ-INT4 weights from compute capability 7.5 on"),
    ("t4", "FP8", "vllm", "0.13", "vLLM 0.13 loads FP8 weights from compute capability 8.0 on, and t4 has 7.5"),
    ("t4", "MXFP4", "vllm", "0.33", "loads MXFP4 weights from compute capability 8.0 on"),
    ("a100", "MXFP4", "vllm", "0.10", "loads MXFP4 weights from compute capability 9.0 on"),
    ("t4", "mixed", "vllm", "0.23", "loads mixed weights from compute capability 8.0 on"),
    ("v100", "BF16", "sglang", None, "SGLang has kernels from compute capability 7.5 on"),
    ("t4", "FP8", "sglang", None, "SGLang loads FP8 weights from compute capability 8.0 on"),
    ("a100", "NVFP4", "sglang", "0.4.9", "SGLang loads NVFP4 weights from compute capability 10.0 on"),
    ("t4", "BF16", "tensorrt_llm", None, "TensorRT-LLM has kernels from compute capability 8.0 on"),
    ("a100", "FP8", "tensorrt_llm", None, "TensorRT-LLM loads FP8 weights from compute capability 8.9 on"),
    ("h100", "NVFP4", "tensorrt_llm", None, "TensorRT-LLM loads NVFP4 weights from compute capability 10.0 on"),
]


@pytest.mark.parametrize(("card", "weights", "engine", "version", "said"), REFUSED)
def test_weights_that_the_engine_does_not_load_on_the_card_are_refused(
    card: str, weights: str, engine: str, version: str | None, said: str
) -> None:
    plan = made(card, weights, engine, version)
    assert plan.verdict == "refused"
    assert said in plan.reason
    assert plan.reason.endswith("; use another GPU type")


LOADED = [
    ("h100", "FP8", "vllm", "0.10", None),
    ("b200", "NVFP4", "vllm", None, None),
    ("h100", "GPTQ-INT4", "vllm", None, None),
    ("a100", "FP8", "vllm", "0.10", "keeps FP8 weights and widens them"),
    ("t4", "FP8", "vllm", "0.14", "keeps FP8 weights and widens them"),
    ("h100", "NVFP4", "vllm", "0.10", "keeps NVFP4 weights and widens them"),
    ("a100", "mixed", "vllm", None, "keeps mixed weights and widens them"),
    ("t4", "BF16", "vllm", None, "t4 has no BF16: vLLM computes in FP16"),
    ("v100", "BF16", "vllm", "0.19", "v100 has no BF16: vLLM computes in FP16"),
    ("t4", "BF16", "sglang", None, "t4 has no BF16: SGLang computes in FP16"),
    ("a100", "NVFP4", "sglang", "0.5.10", "keeps NVFP4 weights and widens them"),
    ("mi300x", "FP8", "vllm", None, None),
]


@pytest.mark.parametrize(("card", "weights", "engine", "version", "said"), LOADED)
def test_what_the_engine_does_instead_is_a_note_and_costs_no_memory(
    card: str, weights: str, engine: str, version: str | None, said: str | None
) -> None:
    plan, native = made(card, weights, engine, version), made("mi300x", weights, engine, version)
    assert plan.verdict != "refused", plan.reason
    notes = [note for note in plan.assumptions if note.startswith(card)]
    assert [said is not None and said in note for note in notes] == ([] if said is None else [True])
    assert plan.worst.term("weights") == native.worst.term("weights")


def test_sglangs_experts_in_fp8_on_older_cards_are_of_late_releases() -> None:
    assert any("July 2026" in note for note in made("a100", "FP8", "sglang", experts=8).assumptions)
    assert not any("July 2026" in note for note in made("a100", "FP8", "vllm", experts=8).assumptions)


def test_a_card_of_another_maker_is_not_judged() -> None:
    form = WeightFormat(name="NVFP4", mixer_millibits=4500, mlp_millibits=4500, expert_millibits=4500)
    card = Card(name="any", memory_bytes=gib(80))
    assert budget(replace(LLAMA, weights=form), card, "vllm", None, Settings(max_model_len=64)).verdict == "fits"
