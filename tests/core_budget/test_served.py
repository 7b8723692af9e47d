"""One table of models: what a service may name, what it means, and what is refused of what the planner knows."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.api import LLMService
from kvbudget.cli.inputs import known_name
from kvbudget.errors import InputError, Problem, ShapeError
from kvbudget.parameters import count
from kvbudget.served import lookup, named, resolve, served_names
from kvbudget.shape import SERVED_TYPES, ModelShape, contradiction
from kvbudget.shapes import table
from kvbudget.shapes.config import from_config
from kvbudget.shapes.dense import dense_of
from kvbudget.shapes.table import facts, known_names
from kvbudget_worker.model.config import ARCHITECTURES

MakeService = Callable[..., LLMService]
# layers, hidden, MLP, heads, KV heads, head, vocabulary, longest, tied, parameters: as published
PUBLISHED: dict[str, tuple[int, int, int, int, int, int, int, int, bool, int]] = {
    "SmolLM2-135M-Instruct": (30, 576, 1536, 9, 3, 64, 49152, 8192, True, 134_515_008),
    "HuggingFaceTB/SmolLM2-135M": (30, 576, 1536, 9, 3, 64, 49152, 8192, True, 134_515_008),
    "HuggingFaceTB/SmolLM2-135M-Instruct": (30, 576, 1536, 9, 3, 64, 49152, 8192, True, 134_515_008),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": (24, 2048, 8192, 32, 32, 64, 49152, 8192, True, 1_711_376_384),
    "meta-llama/Llama-3.1-8B": (32, 4096, 14336, 32, 8, 128, 128256, 131072, False, 8_030_261_248),
    "meta-llama/Llama-3.1-8B-Instruct": (32, 4096, 14336, 32, 8, 128, 128256, 131072, False, 8_030_261_248),
    "meta-llama/Llama-3.1-70B": (80, 8192, 28672, 64, 8, 128, 128256, 131072, False, 70_553_706_496),
    "meta-llama/Llama-3.1-70B-Instruct": (80, 8192, 28672, 64, 8, 128, 128256, 131072, False, 70_553_706_496),
    "meta-llama/Llama-3.3-70B-Instruct": (80, 8192, 28672, 64, 8, 128, 128256, 131072, False, 70_553_706_496),
    "meta-llama/Llama-3.2-1B": (16, 2048, 8192, 32, 8, 64, 128256, 131072, True, 1_235_814_400),
    "meta-llama/Llama-3.2-1B-Instruct": (16, 2048, 8192, 32, 8, 64, 128256, 131072, True, 1_235_814_400),
    "meta-llama/Llama-3.2-3B": (28, 3072, 8192, 24, 8, 128, 128256, 131072, True, 3_212_749_824),
    "meta-llama/Llama-3.2-3B-Instruct": (28, 3072, 8192, 24, 8, 128, 128256, 131072, True, 3_212_749_824),
    "Qwen/Qwen2.5-7B": (28, 3584, 18944, 28, 4, 128, 152064, 131072, False, 7_615_616_512),
    "Qwen/Qwen2.5-7B-Instruct": (28, 3584, 18944, 28, 4, 128, 152064, 32768, False, 7_615_616_512),
    "mistralai/Mistral-7B-Instruct-v0.3": (32, 4096, 14336, 32, 8, 128, 32768, 32768, False, 7_248_023_552),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_of_the_examples_are_served_as_published(name: str) -> None:
    *facts_of, parameters = PUBLISHED[name]
    shape = named(name)
    found = (shape.layers, shape.hidden_size, shape.intermediate_size, shape.attention_heads, shape.kv_heads,
             shape.head_dim, shape.vocab_size, shape.max_position_embeddings, shape.tied_embeddings)  # fmt: skip
    assert (found, shape.weight_bytes, shape.rope_scaling) == (tuple(facts_of), 2 * parameters, False)


@pytest.mark.parametrize("name", served_names())
def test_a_served_model_is_the_one_that_the_planner_knows(name: str) -> None:
    shape, planned = named(name), from_config(facts(name), name)
    assert contradiction(shape) is None
    assert dense_of(planned) == shape.model_copy(update={"weight_bytes": None})
    assert shape.weight_bytes == pytest.approx(count(shape).bytes_at(planned.dtype), rel=1e-4)


@pytest.mark.parametrize("name", known_names())
def test_every_model_of_the_table_is_served_or_refused_with_a_reason(name: str) -> None:
    found = lookup(name)
    if isinstance(found, Problem):
        assert (found.path, found.check) == ("spec.model.name", "ModelNotServed")
        assert found.message.startswith(f"{name} is known, but the bundled worker does not run it: ")
        assert name not in served_names()
    else:
        assert (facts(name) or {})["model_type"] in SERVED_TYPES


def test_served_types_are_those_that_the_worker_has_code_for() -> None:
    classes = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
    assert {classes[model_type] for model_type in SERVED_TYPES} == set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deepseek-ai/DeepSeek-V3", "multi-head latent attention (MLA)"),
        ("mistralai/Mixtral-8x7B-v0.1", "a mixture of experts (MoE)"),
        ("google/gemma-3-27b-it", "sliding-window attention"),
        ("Qwen/Qwen3-8B", 'model_type "qwen3" is not supported yet'),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "it has a vision tower"),
        ("Zyphra/Zamba2-1.2B", "Mamba layers"),
        ("MiniMaxAI/MiniMax-M1-80k", "a mixture of experts (MoE)"),
        ("LiquidAI/LFM2-1.2B", "layer_types has conv"),
    ],
)
def test_a_model_that_the_worker_cannot_run_is_refused_at_apply(
    make_service: MakeService, name: str, said: str
) -> None:
    problem = resolve(make_service({"spec.model.name": name}))
    assert isinstance(problem, Problem)
    assert (problem.path, problem.check) == ("spec.model.name", "ModelNotServed")
    assert said in problem.message


def test_a_quantised_checkpoint_is_refused_although_its_kind_is_served() -> None:
    quantised = [n for n in known_names() if (facts(n) or {}).get("quantization_config")]
    dense = [n for n in quantised if (facts(n) or {}).get("model_type") in SERVED_TYPES]
    assert dense
    for name in dense:
        assert "its checkpoint is quantised" in str(lookup(name))


@pytest.mark.parametrize("written", ["meta-llama/llama-3.1-8b", "Llama-3.1-8B", "llama-3.1-8b"])
def test_a_service_and_the_planner_understand_the_same_names(make_service: MakeService, written: str) -> None:
    assert known_name(written) == "meta-llama/Llama-3.1-8B"
    assert resolve(make_service({"spec.model.name": written})) == named("meta-llama/Llama-3.1-8B")


def test_a_name_of_several_models_is_refused_with_all_of_them(make_service: MakeService) -> None:
    both = "HuggingFaceTB/SmolLM2-135M-Instruct or SmolLM2-135M-Instruct"
    problem = resolve(make_service({"spec.model.name": "smollm2-135m-instruct"}))
    assert isinstance(problem, Problem)
    assert problem.check == "ShapeUnknown"
    assert f"it may be {both}; give one of these" in problem.message
    with pytest.raises(InputError, match=f"may be {both}"):
        known_name("smollm2-135m-instruct")
    with pytest.raises(ShapeError, match=f"it may be {both}"):
        named("smollm2-135m-instruct")


@pytest.mark.parametrize("name", known_names())
def test_a_known_name_is_found_in_any_case(name: str) -> None:
    assert table.matching(name) == (name,)
    assert name in table.matching(name.upper())


def test_a_whole_shape_by_hand_needs_no_served_model(make_service: MakeService) -> None:
    shape: dict[str, Any] = {
        "layers": 2, "hiddenSize": 64, "intermediateSize": 128, "attentionHeads": 4, "vocabSize": 100,
        "maxPositionEmbeddings": 512,
    }  # fmt: skip
    found = resolve(make_service({"spec.model.name": "deepseek-ai/DeepSeek-V3", "spec.model.shape": shape}))
    assert isinstance(found, ModelShape)
    assert (found.layers, found.kv_heads) == (2, 4)
    part = resolve(make_service({"spec.model.name": "deepseek-ai/DeepSeek-V3", "spec.model.shape": {"layers": 2}}))
    assert isinstance(part, Problem)
    assert part.check == "ModelNotServed"
