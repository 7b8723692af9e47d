"""178 published models: kind and count of layers, KV bytes per token, parameters, bytes of the checkpoint.

``data/models-*.jsonl`` has a model a line: keys of its configuration, as published or as a catalogue sums them up; and
what follows from them, worked out apart from this project: layers by kind, 16-bit KV bytes of one token (of a window's
token where there is a window) on one GPU, parameters of the text model (exact, or counted by transformers).
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cachebytes import token_bytes
from kvbudget.layers import Architecture, cache_kind
from kvbudget.shapes import table
from kvbudget.shapes.config import from_config
from kvbudget.weights import count, stored_bytes, total_parameters

GIB = 2**30
DATA = Path(__file__).parent / "data"
MODELS: dict[str, dict[str, Any]] = {
    entry["name"]: entry
    for file in sorted(DATA.glob("models-*.jsonl"))
    for entry in map(json.loads, file.read_text(encoding="utf-8").splitlines())
}
SHAPES: dict[str, Architecture] = {
    name: from_config(entry["config"], name, name=name) for name, entry in MODELS.items()
}
UNPUBLISHED_DRAFTS = ("deepseek-ai/DeepSeek-V4-Flash-0731",)
"""A catalogue's size of a release whose configuration is not known; 4.6% above what its predecessor's gives."""


def test_there_are_178_models() -> None:
    assert len(MODELS) == 178


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_keeps_what_the_model_says(name: str) -> None:
    kinds: Counter[str] = Counter()
    for group in SHAPES[name].groups:
        kinds[cache_kind(group.cache)] += group.count
    kinds.pop("none", None)
    assert dict(kinds) == MODELS[name]["layers"]


@pytest.mark.parametrize("name", MODELS)
def test_a_token_costs_what_the_layers_keep(name: str) -> None:
    found = sum(group.count * token_bytes(group.cache, "BF16") for group in SHAPES[name].groups)
    assert found == MODELS[name]["bytes_per_token"]


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if "parameters" in entry])
def test_parameters_are_the_published_number(name: str) -> None:
    shape = SHAPES[name]
    expected = MODELS[name]["parameters"]
    assert total_parameters(shape) - (shape.vision_parameters or 0) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if "checkpoint_gib" in entry])
def test_the_checkpoint_is_as_large_as_its_catalogue_says(name: str) -> None:
    shape = SHAPES[name]
    found = stored_bytes(shape, count(shape, drafts=True)) / GIB
    tolerance = 0.05 if name in UNPUBLISHED_DRAFTS else 0.006
    assert found == pytest.approx(MODELS[name]["checkpoint_gib"], rel=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_file_left_out_is_said(name: str) -> None:
    """A catalogue's summary has no model_type; what was taken instead stands in the assumptions."""
    if "model_type" not in MODELS[name]["config"]:
        assert any("not in the file, taken from what is known of" in note for note in SHAPES[name].assumptions)


@pytest.mark.parametrize("name", table.known_names())
def test_every_model_of_the_table_can_be_read_by_its_name_alone(name: str) -> None:
    shape = from_config(table.facts(name), name)
    assert shape.layers >= 1
    if name in SHAPES:
        assert [(g.cache, g.layers) for g in shape.groups] == [(g.cache, g.layers) for g in SHAPES[name].groups]


def test_facts_that_are_not_the_models_own_are_said_to_be_so() -> None:
    assert any("library's defaults" in note for note in SHAPES["ai21labs/Jamba-v0.1"].assumptions)
    assert any("inferred from its family" in note for note in SHAPES["google/gemma-4-E2B-it"].assumptions)
    assert SHAPES["meta-llama/Meta-Llama-3.1-8B"].assumptions == ()


def test_stages_and_ranks_add_up_to_the_whole() -> None:
    for shape in SHAPES.values():
        half = shape.layers // 2
        tables = 0 if not shape.tied_embeddings else shape.vocab_size * shape.hidden_size
        parts = count(shape, last=half).total + count(shape, first=half).total
        assert parts == count(shape).total + tables + shape.extra
