"""The table of keys, and the law behind it: a key that could change what is kept is never passed over in silence."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvbudget.errors import ShapeError
from kvbudget.shapes.config import from_config
from kvbudget.shapes.families import FAMILIES
from kvbudget.shapes.ggufkeys import config_of, untranslated
from kvbudget.shapes.known import AGAIN, KeyClass, row_of, rows
from kvbudget.shapes.table import facts, known_names
from support.laws import share

DATA = Path(__file__).parent / "data"
SHAPES = Path(__file__).resolve().parents[2] / "core" / "kvbudget" / "shapes"
ENTRIES = [
    json.loads(line)
    for file in sorted(DATA.glob("models-*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]
CONFIGS: dict[str, dict[str, Any]] = {entry["name"]: entry["config"] for entry in ENTRIES}
LLAMA: dict[str, Any] = facts("meta-llama/Llama-3.1-8B") or {}

# --- the table --------------------------------------------------------------------------------------------------------


def test_every_key_has_a_class_and_a_reason_and_is_listed_once() -> None:
    counted = Counter(row.key for row in rows())
    assert [key for key, count in counted.items() if count > 1] == []
    assert [row.key for row in rows() if row.key_class not in get_args(KeyClass) or len(row.reason) < 5] == []


def test_every_key_of_the_models_is_in_the_table_by_its_own_name() -> None:
    used = {key for config in CONFIGS.values() for key in config}
    used |= {key for name in known_names() for key in facts(name) or {}}
    exact = {row.key for row in rows() if not row.is_pattern}
    assert used - exact == set()


def test_every_key_that_is_read_is_in_the_table_as_read() -> None:
    """Names in the parsers' calls: ``keys.count("a", "b")`` and its like."""
    calls = re.compile(
        r"\b(?:self\.)?keys\.(?:count|optional|flag|text|has|number|words|counts|child|parameters)\(([^()]*)"
    )
    read = {
        name
        for file in SHAPES.glob("*.py")
        if file.name not in ("mistral.py", "ggufkeys.py", "known.py")
        for arguments in calls.findall(file.read_text(encoding="utf-8"))
        for name in re.findall(r'"(\w+)"', arguments)
    }
    assert len(read) > 100
    read -= {"compress_rates", "per_layer_config", "linear_head_dim"}  # renamed before they are looked up
    read -= {"falcon_h1"}  # the name of a family
    nested = {"num_heads", "short_conv_kernel_size", "use_full_rank_gate"}
    read = {f"linear_attn_config.{name}" if name in nested else name for name in read}
    classes = {name: row.key_class for name in sorted(read) if (row := row_of(name)) is not None}
    assert set(classes) == read
    assert {name for name, found in classes.items() if found != "shape"} == set()


def test_keys_that_must_agree_are_those_that_are_compared() -> None:
    assert {row.key for row in rows() if row.key_class == "again"} == set(AGAIN)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("qk_head_dim", "again"), ("attention_head_dim", "again"), ("key_dim", "again"), ("value_dim", "again"),
        ("v_head_dim", "shape"), ("index_topk_pattern", "shape"), ("index_kpool", "refused"),
        ("cross_attention_hidden_size", "refused"), ("kv_cache_multiplier", "refused"), ("my_window_theta", "refused"),
        ("latent_eps", "refused"), ("foo_lora_rank", "refused"), ("ssm_act", "refused"), ("conv_std", "refused"),
        ("shared_dropout", "refused"), ("compressor_init_std", "refused"), ("vision_kv_heads", "elsewhere"),
        ("attention_dropout", "harmless"), ("rope_theta", "harmless"), ("use_cache", "harmless"),
    ],
)  # fmt: skip
def test_keys_fall_into_the_class_that_their_name_calls_for(key: str, expected: str) -> None:
    row = row_of(key)
    assert row is not None
    assert row.key_class == expected


# --- the law ----------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["window", "latent", "lora_rank", "state", "conv", "ssm", "share", "shared", "kv", "cache", "compress", "head_dim",
     "heads", "key", "value", "query", "layers", "attn", "mixer", "depth", "merge", "ratio", "every", "groups",
     "memory", "size", "width", "num", "use", "my", "global", "local", "frob"]
)  # fmt: skip
NAMES = st.lists(WORDS, min_size=1, max_size=3).map("_".join)
SAYING = st.integers(1, 4096) | st.just(True) | st.lists(st.integers(0, 3), min_size=1, max_size=3) | st.just("some")
ANY_CONFIG = st.sampled_from(sorted(CONFIGS)).map(lambda name: (name, CONFIGS[name]))
STRICT = re.compile(r"kv|cache|window|latent|lora|compress|state|ssm|conv_|conv$|shar|head|^key_|^value_")


def said_of(config: dict[str, Any], name: str | None, key: str) -> str:
    """What a user is told of a key: the refusal, else the assumptions."""
    try:
        return "\n".join(from_config(config, name=name).assumptions)
    except ShapeError as error:
        return f"refused: {error}"


@share(2)
@given(ANY_CONFIG, NAMES, SAYING)
def test_a_key_that_is_added_is_refused_or_named(model: tuple[str, dict[str, Any]], key: str, value: object) -> None:
    name, config = model
    row = row_of(key)
    assume(row is None or row.is_pattern)
    told = said_of({**config, key: value}, name, key)
    assert key in told
    if STRICT.search(key):
        assert told.startswith("refused: ")


@share(2)
@given(ANY_CONFIG, st.data(), st.sampled_from(["my_{}", "{}_per_rank", "{}s", "new_{}", "x{}"]))
def test_a_key_that_is_renamed_is_refused_or_named(
    model: tuple[str, dict[str, Any]], data: st.DataObject, form: str
) -> None:
    _, config = model
    old = data.draw(st.sampled_from(sorted(config)))
    new = form.format(old)
    row = row_of(new)
    assume(config[old] and (row is None or row.is_pattern))
    changed = {**{k: v for k, v in config.items() if k != old}, new: config[old]}
    told = said_of(changed, None, new)
    assert (
        new in told or told.startswith("refused: ") or (row is not None and row.key_class in ("harmless", "elsewhere"))
    )
    kept = row_of(old)
    if kept is not None and kept.key_class == "shape" and STRICT.search(old):
        assert told.startswith("refused: ")


@share(2)
@given(ANY_CONFIG, st.sampled_from(["qk_head_dim", "attention_head_dim", "key_dim", "value_dim", "num_kv_heads"]),
       st.integers(1, 4096))  # fmt: skip
def test_a_key_that_says_a_width_again_agrees_or_is_refused(
    model: tuple[str, dict[str, Any]], key: str, value: int
) -> None:
    name, config = model
    try:
        changed = from_config({**config, key: value}, name=name)
    except ShapeError as error:
        refusal = str(error)
    else:
        assert changed == from_config(config, name=name)
        return
    assert key in refusal


@pytest.mark.parametrize("section", ["attn_config", "ffn_config", "sparse_attention_config", "linear_attn_config"])
def test_keys_of_nested_objects_are_looked_up_too(section: str) -> None:
    with pytest.raises(ShapeError, match=r"kv_merge is 2: not known"):
        from_config({**LLAMA, section: {"kv_merge": 2}})


# --- model types that are not known -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["novel", None])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_key_value_heads": None}, "key num_key_value_heads is missing"),
        ({"sliding_window": 4096}, "it is not known which layers slide; add layer_types"),
        ({"attention_chunk_size": 4096}, "it is not known which layers are cut into chunks; add layer_types"),
        ({"mamba_d_state": 128, "mamba_n_heads": 32}, "no list says what each layer is"),
        ({"conv_L_cache": 3}, "no list says what each layer is"),
    ],
)
def test_of_an_unknown_type_only_keys_that_describe_themselves_are_read(
    model_type: str | None, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ShapeError, match=said):
        from_config({**LLAMA, "model_type": model_type, **changes})


def test_an_unknown_type_that_describes_itself_is_read_with_a_note() -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    shape = from_config({**LLAMA, "model_type": "novel", "layer_types": kinds, "sliding_window": 512})
    assert [group.count for group in shape.groups] == [16, 16]
    assert any('model_type "novel" is not known' in note for note in shape.assumptions)


def test_the_precision_of_an_unknown_types_state_is_an_assumption() -> None:
    mamba = {"layer_types": ["mamba"] * 31 + ["attention"], "mamba_d_state": 128, "mamba_n_heads": 32}
    notes = from_config({**LLAMA, "model_type": "novel", **mamba}).assumptions
    assert any("precision of the state is not known" in note for note in notes)


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_without_kv_heads_a_family_tells_them_or_is_refused(model_type: str) -> None:
    config = {**LLAMA, "model_type": model_type, "num_key_value_heads": None, "layer_types": ["full_attention"] * 32}
    try:
        shape = from_config(config)
    except ShapeError as error:
        refusal = str(error)
    else:
        assert {getattr(group.cache, "kv_heads", 32) for group in shape.groups} == {32}
        return
    assert "num_key_value_heads is missing" in refusal


def test_an_old_chatglm_without_groups_has_as_many_kv_heads_as_query_heads() -> None:
    config = {**LLAMA, "model_type": "chatglm", "num_key_value_heads": None, "multi_query_group_num": 2}
    heads = [
        from_config({**config, "multi_query_attention": grouped}).groups[0].cache.kv_heads  # type: ignore[union-attr]
        for grouped in (True, False)
    ]
    assert heads == [2, 32]


def test_letters_say_which_layers_have_an_indexer() -> None:
    glm = facts("zai-org/GLM-5.2") or {}
    shape = from_config({**glm, "index_topk_freq": None, "index_topk_pattern": "FS" * 39})
    assert [group.count for group in shape.groups] == [39, 39]
    with pytest.raises(ShapeError, match="index_topk_pattern is"):
        from_config({**glm, "index_topk_pattern": "FX" * 39})


# --- GGUF -------------------------------------------------------------------------------------------------------------

HEADER: dict[str, object] = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64, "llama.context_length": 512,
    "llama.feed_forward_length": 96, "llama.attention.head_count": 4, "llama.vocab_size": 320,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4, "llama.rope.dimension_count": 16,
}  # fmt: skip


def read_gguf(**more: object) -> tuple[str, ...]:
    values = {**HEADER, **{f"llama.{key}": value for key, value in more.items()}}
    return from_config({**config_of(values, "m.gguf"), **untranslated(values)}).assumptions


def test_keys_of_a_gguf_header_are_looked_up_too() -> None:
    assert read_gguf() == ()
    assert read_gguf(frobnicate=2) == ("keys of which nothing is known are taken to change nothing: llama.frobnicate",)
    with pytest.raises(ShapeError, match=r"llama\.attention\.kv_merge is 2: not known"):
        read_gguf(**{"attention.kv_merge": 2})


def test_a_gguf_header_without_kv_heads_has_one_for_each_query_head() -> None:
    assert config_of(HEADER, "m.gguf")["num_key_value_heads"] == 4
