"""Files that cannot be served: each is named, with the reason and the fix, and nothing else is raised."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from kvbudget.errors import InputError, ShapeError, UnsupportedError, WeightsError
from kvbudget_worker.model.parameters import load_parameters
from kvbudget_worker.runner import Runner
from kvbudget_worker.weights import open_checkpoint
from support.laws import share
from support.stepping import alone
from support.tinymodel import TinyModel, make_tiny_model, tiny_plan


def _load(folder: Path) -> None:
    load_parameters(open_checkpoint(folder), torch.float32, torch.device("cpu"))


def _edit(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


def _llama3(**changes: object) -> dict[str, object]:
    return {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, **changes}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"num_hidden_layers": "absent"}, ShapeError, "config.json: num_hidden_layers: is missing"),
        ({"num_hidden_layers": 0}, ShapeError, "num_hidden_layers: is 0, not a positive whole number"),
        ({"hidden_size": "64"}, ShapeError, "hidden_size: is '64', not a positive whole number"),
        ({"vocab_size": True}, ShapeError, "vocab_size: is True"),
        ({"num_key_value_heads": 3}, ShapeError, "num_key_value_heads: 3 does not divide the 4 attention heads"),
        ({"head_dim": "absent", "num_attention_heads": 7}, ShapeError, "head_dim|num_key_value_heads"),
        ({"rms_norm_eps": "small"}, ShapeError, "rms_norm_eps: is 'small', not a positive number"),
        ({"eos_token_id": "x"}, ShapeError, "eos_token_id: 'x' is no token id"),
        ({"rope_scaling": "yarn"}, ShapeError, "rope_scaling: must be an object"),
        ({"architectures": ["GPT2LMHeadModel"]}, UnsupportedError, "architectures: GPT2LMHeadModel is not supported"),
        ({"architectures": None}, UnsupportedError, "architectures: .none. is not supported"),
        ({"rope_scaling": {"rope_type": "yarn"}}, UnsupportedError, "type 'yarn' is not supported"),
        ({"sliding_window": 1024}, UnsupportedError, "sliding_window: sliding-window attention is not supported"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act: 'gelu' is not supported"),
        ({"mlp_bias": True}, UnsupportedError, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, UnsupportedError, "quantization_config"),
        ({"rms_norm_eps": float("nan")}, ShapeError, "rms_norm_eps: is nan, not a positive number"),
        ({"rope_theta": float("inf")}, ShapeError, "rope_theta: is inf, not a positive number"),
        ({"rope_theta": 10**400}, ShapeError, "rope_theta: is 1000000.*0000, not a positive number"),
        ({"num_hidden_layers": 10**400}, ShapeError, "num_hidden_layers: is 1000000.*0000, not a positive whole"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, ShapeError, "factor: is nan"),
        ({"rope_scaling": _llama3(low_freq_factor=4.0)}, ShapeError, "low_freq_factor 4.0 must be below"),
        ({"rope_scaling": _llama3(original_max_position_embeddings=10**400)}, ShapeError, "original_max_position"),
        ({"architectures": [["LlamaForCausalLM"]]}, UnsupportedError, "architectures: "),
        ({"tie_word_embeddings": "false"}, ShapeError, "tie_word_embeddings: is 'false', not true or false"),
        ({"attention_bias": 0}, ShapeError, "attention_bias: is 0, not true or false"),
        ({"hidden_size": 128}, ShapeError, r"tensor model.embed_tokens.weight is \[320, 64\].*asks for \[320, 128\]"),
        ({"num_hidden_layers": 3}, WeightsError, "has no tensor model.layers.2.input_layernorm.weight"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused_by_key(
    changes: dict[str, object], error: type[InputError], words: str, tiny: Path
) -> None:
    _edit(tiny, **changes)
    with pytest.raises(error, match=f"{tiny}.*{words}"):
        _load(tiny)


@pytest.mark.parametrize(
    ("name", "break_it", "error", "words"),
    [
        ("config.json", lambda p: p.unlink(), ShapeError, "not found: the weights folder needs"),
        ("config.json", lambda p: p.write_text("{'a': 1}"), ShapeError, "no valid JSON .*copy"),
        ("config.json", lambda p: p.write_text("[]"), ShapeError, "must hold a JSON object"),
        ("config.json", lambda p: p.write_bytes(b"\xff\xfe"), ShapeError, "no valid JSON"),
        ("config.json", lambda p: p.write_text("[" * 100_000), ShapeError, "no valid JSON .*copy"),
        ("generation_config.json", lambda p: p.write_text("[" * 100_000), ShapeError, "cannot be read .*copy"),
        ("model.safetensors", lambda p: p.unlink(), WeightsError, "neither model.safetensors .* nor a .gguf"),
        ("model.safetensors", lambda p: p.write_bytes(b""), WeightsError, "damaged or truncated .*checksum"),
        ("model.safetensors", lambda p: p.write_bytes(b"x" * 999), WeightsError, "damaged or truncated .*checksum"),
        ("generation_config.json", lambda p: p.write_text("{"), ShapeError, "cannot be read .*copy"),
    ],
)
def test_a_broken_file_is_named_with_the_fix(
    name: str, break_it: Callable[[Path], object], error: type[InputError], words: str, tiny: Path
) -> None:
    break_it(tiny / name)
    with pytest.raises(error, match=f"{tiny}.*{words}"):
        _load(tiny)


@share(0.5)
@given(cut=st.floats(min_value=0, max_value=1, exclude_max=True))
def test_safetensors_cut_anywhere_are_refused_by_path(cut: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "cut-safetensors"
    whole = folder / "whole"
    if not whole.exists():
        make_tiny_model(folder)
        (folder / "model.safetensors").rename(whole)
    content = whole.read_bytes()
    (folder / "model.safetensors").write_bytes(content[: int(len(content) * cut)])
    with pytest.raises(WeightsError, match=str(folder / "model.safetensors")):
        _load(folder)


def test_a_path_that_is_not_there_points_at_the_source(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nowhere: does not exist: check spec\.model\.source"):
        open_checkpoint(tmp_path / "nowhere")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedError, match=r"neither a folder nor a \.gguf"):
        open_checkpoint(tmp_path / "model.bin")


def test_two_gguf_files_in_a_folder_need_a_choice(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match=r"holds 2 GGUF files \(a\.gguf, …\): name one"):
        open_checkpoint(tmp_path)


class TestShards:
    @pytest.fixture
    def sharded(self, tiny: Path) -> Path:
        tensors = load_file(tiny / "model.safetensors")
        (tiny / "model.safetensors").unlink()
        names = sorted(tensors)
        parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, members in parts.items():
            save_file({name: tensors[name] for name in members}, str(tiny / file))
        index = {"weight_map": {name: file for file, members in parts.items() for name in members}}
        (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
        return tiny

    def test_shards_load_as_one_file_does(self, sharded: Path, tmp_path: Path) -> None:
        whole = make_tiny_model(tmp_path / "whole")
        outputs = [alone(Runner.load(tiny_plan(f), "cpu"), [1, 2], 8) for f in (whole, tmp_path / "whole")]
        plan = tiny_plan(whole)
        plan = plan.model_copy(update={"model": plan.model.model_copy(update={"weights_path": str(sharded)})})
        assert alone(Runner.load(plan, "cpu"), [1, 2], 8) == outputs[0]

    def test_a_missing_shard_is_named(self, sharded: Path) -> None:
        (sharded / "b.safetensors").unlink()
        with pytest.raises(WeightsError, match=r"b\.safetensors: .*copy all shards"):
            _load(sharded)

    @pytest.mark.parametrize(
        "content", ["{", "[" * 100_000, "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../../etc/x"}}']
    )
    def test_a_broken_index_is_named(self, sharded: Path, content: str) -> None:
        (sharded / "model.safetensors.index.json").write_text(content)
        with pytest.raises(WeightsError, match=r"index\.json: .*copy it again"):
            _load(sharded)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float8_e4m3fn])
def test_codes_of_a_quantisation_are_not_taken_for_weights(dtype: torch.dtype, tiny: Path) -> None:
    tensors = load_file(tiny / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(dtype)
    save_file(tensors, str(tiny / "model.safetensors"))
    with pytest.raises(WeightsError, match=rf"model\.safetensors: tensor model\.norm\.weight is {dtype}: use BF16"):
        _load(tiny)


def test_end_tokens_of_the_generation_config_count_too(tiny: Path) -> None:
    (tiny / "generation_config.json").write_text('{"eos_token_id": [256, 258]}')
    assert open_checkpoint(tiny).config.eos_ids == (258, 256)


def test_untied_weights_need_their_output_matrix(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    _edit(folder, tie_word_embeddings=False)
    with pytest.raises(WeightsError, match=r"has no tensor lm_head\.weight"):
        _load(folder)
    make_tiny_model(tmp_path, replace(TinyModel(), tied_embeddings=False))
    _load(folder)
