"""Where a shape comes from: the manifest, the built-in table, or config.json; and what is refused, and how."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.api import LLMService
from kvbudget.errors import Problem, ShapeError
from kvbudget.served import named, resolve, served_names
from kvbudget.shape import ModelShape, contradiction, from_config, from_config_text

MakeService = Callable[..., LLMService]

LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}


def config(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in {**LLAMA_CONFIG, **changes}.items() if v != "remove"}


def test_the_llama_config_gives_the_shape_of_the_built_in_table() -> None:
    built_in = named("meta-llama/Llama-3.1-8B")
    assert from_config(LLAMA_CONFIG) == built_in.model_copy(update={"weight_bytes": None})


@pytest.mark.parametrize("name", served_names())
def test_every_built_in_shape_is_possible_and_its_checkpoint_has_two_bytes_per_parameter(name: str) -> None:
    from kvbudget.parameters import count

    shape = named(name)
    assert contradiction(shape) is None
    assert shape.weight_bytes == pytest.approx(2 * count(shape).total, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        pytest.param({"num_key_value_heads": "remove"}, "kv_heads", 32, id="without kv heads it is MHA"),
        pytest.param({"head_dim": 64}, "head_dim", 64, id="head_dim wins over hidden ÷ heads"),
        pytest.param({"head_dim": None}, "head_dim", 128, id="a null head_dim is derived"),
        pytest.param({"tie_word_embeddings": True}, "tied_embeddings", True, id="tied"),
        pytest.param({}, "rope_scaling", False, id="llama3 scaling is already in the length"),
        pytest.param({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling", True, id="yarn stretches"),
        pytest.param(
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            "max_position_embeddings",
            131072,
            id="yarn multiplies the original length",
        ),
        pytest.param(
            {"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False},
            "layers",
            32,
            id="a window that is switched off",
        ),
        pytest.param({"model_type": "mistral", "sliding_window": None}, "layers", 32, id="mistral without a window"),
        pytest.param({"layer_types": ["full_attention"] * 32, "sliding_window": 4096}, "layers", 32, id="all full"),
        pytest.param({"num_experts": 0}, "layers", 32, id="no experts"),
    ],
)
def test_config_json_is_read_as_transformers_reads_it(changes: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(from_config(config(**changes)), field) == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": "remove"}, "key num_hidden_layers is missing"),
        ({"vocab_size": None}, "key vocab_size is missing"),
        ({"hidden_size": "4096"}, 'hidden_size is "4096"; it must be a whole number'),
        ({"hidden_size": True}, "hidden_size is true; it must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a whole number from 1"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000"),
        ({"tie_word_embeddings": "no"}, 'tie_word_embeddings is "no"; it must be true or false'),
        ({"num_attention_heads": 33, "num_key_value_heads": 33}, "33 does not divide hidden_size 4096; add head_dim"),
        ({"num_key_value_heads": 5}, "attentionHeads 32 is not a multiple of kvHeads 5"),
        ({"rope_scaling": {"type": "yarn", "factor": float("inf")}}, "factor of rope_scaling is inf"),
        ({"rope_scaling": {"type": "yarn", "factor": float("nan")}}, "factor of rope_scaling is nan"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window is 4096 (sliding-window attention)"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention"),
        ({"layer_types": ["linear_attention"]}, "layer_types has linear_attention"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "kv_lora_rank is 512 (multi-head latent attention (MLA))"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "num_local_experts is 8 (a mixture of experts (MoE))"),
        ({"model_type": "mamba", "state_size": 16}, "state_size is 16 (Mamba layers)"),
        ({"hybrid_override_pattern": "M-M*"}, "(Mamba layers): not supported yet"),
        ({"text_config": {"hidden_size": 1}}, "(a multimodal model): not supported yet"),
        ({"model_type": "gpt2"}, 'model_type "gpt2" is not supported yet; supported: llama'),
        ({"model_type": "remove"}, "model_type null is not supported yet"),
    ],
)
def test_a_config_without_a_dense_shape_is_refused_by_the_name_of_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError) as raised:
        from_config(config(**changes), "models/x/config.json")
    assert str(raised.value).startswith("models/x/config.json: ")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": ', "is not JSON (line 1: Expecting value)"),
        ("", "is not JSON (line 1: Expecting value)"),
        ("[1, 2]", "holds a list, not an object"),
        ("null", "holds a NoneType, not an object"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_text_that_is_no_config_is_refused(text: str, said: str) -> None:
    with pytest.raises(ShapeError) as raised:
        from_config_text(text, "c.json")
    assert said in str(raised.value)


def test_a_config_survives_being_written_as_text() -> None:
    assert from_config_text(json.dumps(LLAMA_CONFIG)) == from_config(LLAMA_CONFIG)


WORDS = st.sampled_from(["", "llama", "yarn", "full_attention", "4096", "factor", "rope_type", "é"])
SCALARS = st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats() | WORDS
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(WORDS, SCALARS, max_size=3)


@given(
    st.dictionaries(st.sampled_from([*LLAMA_CONFIG, "head_dim", "sliding_window", "layer_types", "num_experts"]), JSON)
)
def test_any_json_object_gives_a_possible_shape_or_a_shape_error(changes: dict[str, Any]) -> None:
    try:
        shape = from_config({**LLAMA_CONFIG, **changes})
    except ShapeError:
        return
    assert contradiction(shape) is None


# --- resolve ----------------------------------------------------------------------------------------------------------

WHOLE_SHAPE = {
    "layers": 2,
    "hiddenSize": 64,
    "intermediateSize": 128,
    "attentionHeads": 4,
    "kvHeads": 2,
    "headDim": 16,
    "vocabSize": 100,
    "maxPositionEmbeddings": 512,
}


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_a_known_name_needs_no_shape(make_service: MakeService, name: str) -> None:
    shape = resolve(make_service({"spec.model.name": name}))
    assert isinstance(shape, ModelShape)
    assert (shape.layers, shape.kv_heads, shape.head_dim, shape.weight_bytes) == (30, 3, 64, 269_030_016)


def test_the_objects_name_counts_where_the_model_has_none(make_service: MakeService) -> None:
    assert isinstance(resolve(make_service({"spec.model.name": None})), Problem)


def test_an_unknown_name_is_refused_with_what_to_set(make_service: MakeService) -> None:
    problem = resolve(make_service({"spec.model.name": "acme/secret-7b"}))
    assert isinstance(problem, Problem)
    assert problem.path == "spec.model.shape"
    assert problem.message.startswith("shape of acme/secret-7b is unknown: set spec.model.shape")


def test_a_shape_that_lacks_facts_is_refused_with_their_names(make_service: MakeService) -> None:
    shape = {k: v for k, v in WHOLE_SHAPE.items() if k not in ("layers", "vocabSize")}
    problem = resolve(make_service({"spec.model.name": "x/y", "spec.model.shape": shape}))
    assert isinstance(problem, Problem)
    assert "spec.model.shape lacks layers, vocabSize" in problem.message


def test_a_whole_shape_wins_over_the_table_and_drops_the_tables_checkpoint(make_service: MakeService) -> None:
    shape = resolve(make_service({"spec.model.shape": WHOLE_SHAPE}))
    assert isinstance(shape, ModelShape)
    assert (shape.layers, shape.hidden_size, shape.weight_bytes) == (2, 64, None)


def test_one_fact_can_be_set_over_the_table(make_service: MakeService) -> None:
    shape = resolve(make_service({"spec.model.shape": {"weightBytes": 16_061_000_000}}))
    assert isinstance(shape, ModelShape)
    assert (shape.layers, shape.weight_bytes) == (32, 16_061_000_000)


def test_heads_and_head_dim_that_are_left_out_follow_from_the_others(make_service: MakeService) -> None:
    given_shape = {k: v for k, v in WHOLE_SHAPE.items() if k not in ("kvHeads", "headDim")}
    shape = resolve(make_service({"spec.model.name": "x/y", "spec.model.shape": given_shape}))
    assert isinstance(shape, ModelShape)
    assert (shape.kv_heads, shape.head_dim) == (4, 16)


def test_a_shape_that_contradicts_itself_is_refused(make_service: MakeService) -> None:
    problem = resolve(make_service({"spec.model.shape": {**WHOLE_SHAPE, "attentionHeads": 5, "kvHeads": 3}}))
    assert isinstance(problem, Problem)
    assert "attentionHeads 5 is not a multiple of kvHeads 3" in problem.message


def test_weights_can_be_compared_with_a_planned_shape() -> None:
    planned = named("SmolLM2-135M-Instruct")
    found = planned.model_copy(update={"weight_bytes": None, "max_position_embeddings": 2048})
    assert planned.difference(found) == ()
    assert planned.difference(found.model_copy(update={"layers": 29, "tied_embeddings": False})) == (
        "layers",
        "tied_embeddings",
    )
