"""Checkpoints as real writers write them: GGUF, safetensors in one file and in shards, params.json; and broken ones."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from kvbudget.errors import InputError, ShapeError, WeightsError
from kvbudget.layers import AttentionCache, StateCache
from kvbudget.shapes.files import INDEX, checkpoint_in, read_model
from kvbudget.shapes.gguf import BLOCKS, read_header
from kvbudget.shapes.ggufkeys import config_of
from kvbudget.shapes.mistral import from_params
from kvbudget.weights import count, rank_bytes, total_parameters

HIDDEN, LAYERS, HEADS, KV_HEADS, WIDTH, VOCAB = 64, 2, 4, 2, 96, 320
CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": WIDTH,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "torch_dtype": "float16",
    "max_position_embeddings": 512,
}  # fmt: skip
KV_WIDTH = KV_HEADS * HIDDEN // HEADS
SHAPES = {
    "embed": (VOCAB, HIDDEN), "head": (VOCAB, HIDDEN), "norm": (HIDDEN,),
    **{f"{i}.{name}": shape for i in range(LAYERS) for name, shape in {
        "q": (HIDDEN, HIDDEN), "k": (KV_WIDTH, HIDDEN), "v": (KV_WIDTH, HIDDEN), "o": (HIDDEN, HIDDEN),
        "gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH), "n1": (HIDDEN,), "n2": (HIDDEN,),
    }.items()},
}  # fmt: skip
PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES.values())


def tensors() -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.zeros(shape, dtype=np.float16) for name, shape in SHAPES.items()}


def write_gguf(
    path: Path, *, arch: str = "llama", quantised: bool = False, extra: dict[str, int] | None = None
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(512)
    writer.add_token_list([f"token {i}" for i in range(VOCAB)])
    for key, value in (extra or {}).items():
        writer.add_key_value(f"{arch}.{key}", value, gguf.GGUFValueType.UINT32)
    for name, array in tensors().items():
        if quantised and array.ndim == 2:
            packed = gguf.quants.quantize(array.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(folder: Path, *, shards: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    arrays = tensors()
    if not shards:
        save_file(arrays, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: array for i, (key, array) in enumerate(arrays.items()) if i % shards == shard}
        save_file(part, folder / name)
        weight_map.update(dict.fromkeys(part, name))
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 2 * PARAMETERS}, "weight_map": weight_map}))
    return folder


# --- GGUF -------------------------------------------------------------------------------------------------------------


def test_block_sizes_are_those_of_ggml() -> None:
    known = {kind.value: sizes for kind, sizes in gguf.constants.GGML_QUANT_SIZES.items()}
    assert {kind: (block, size) for kind, (_, block, size) in BLOCKS.items()} == {k: known[k] for k in BLOCKS}


def test_a_gguf_file_gives_its_facts_and_its_exact_bytes(tmp_path: Path) -> None:
    shape = read_model(write_gguf(tmp_path / "m.gguf"))
    assert (shape.layers, shape.vocab_size, shape.hidden_size, shape.kind) == (LAYERS, VOCAB, HIDDEN, "full")
    assert shape.groups[0].cache == AttentionCache(kv_heads=KV_HEADS, head_dim=16, v_head_dim=16)
    assert total_parameters(shape) == PARAMETERS
    assert rank_bytes(shape) == 2 * PARAMETERS


def test_quantised_blocks_are_counted_by_their_size(tmp_path: Path) -> None:
    shape = read_model(write_gguf(tmp_path / "m.gguf", quantised=True))
    norms = HIDDEN * (2 * LAYERS + 1)
    assert shape.weight_bytes == (PARAMETERS - norms) // 32 * 34 + 2 * norms
    assert shape.weights.name == "GGUF Q8_0"


def test_the_header_alone_is_enough(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "m.gguf").read_bytes()
    whole = read_header(data)
    assert read_header(data[: len(data) - whole.tensor_bytes]) == whole


@pytest.mark.parametrize("kept", [0, 3, 12, 40, 200, 900])
def test_a_gguf_file_that_ends_too_soon_is_refused(tmp_path: Path, kept: int) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightsError, match="download the file again"):
        read_model(path)


def split_gguf(folder: Path, parts: int) -> list[Path]:
    """The tensors over so many files, as `llama-gguf-split` writes them."""
    paths = []
    for part in range(parts):
        path = folder / f"m-{part + 1:05}-of-{parts:05}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if part == 0:
            writer.add_block_count(LAYERS)
            writer.add_embedding_length(HIDDEN)
            writer.add_feed_forward_length(WIDTH)
            writer.add_head_count(HEADS)
            writer.add_head_count_kv(KV_HEADS)
            writer.add_context_length(512)
            writer.add_token_list([f"token {i}" for i in range(VOCAB)])
        writer.add_uint16("split.count", parts)
        for i, (name, array) in enumerate(tensors().items()):
            if i % parts == part:
                writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def test_a_split_gguf_is_read_as_one(tmp_path: Path) -> None:
    first, *_ = split_gguf(tmp_path, 3)
    assert read_model(first).weight_bytes == 2 * PARAMETERS
    assert read_model(tmp_path).weight_bytes == 2 * PARAMETERS


def test_a_part_of_a_split_gguf_is_never_taken_for_the_whole(tmp_path: Path) -> None:
    first, second, third = split_gguf(tmp_path, 3)
    third.unlink()
    with pytest.raises(WeightsError, match=r"needs m-00003-of-00003\.gguf beside it, which is not there"):
        read_model(first)
    with pytest.raises(ShapeError, match="is one of 3 files; give the first of them"):
        read_model(second)
    renamed = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(ShapeError, match="is one of 3 files"):
        read_model(renamed)


def test_a_gguf_of_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r'general\.architecture is "rwkv7"; known: llama'):
        read_model(write_gguf(tmp_path / "m.gguf", arch="rwkv7"))


def test_a_window_of_a_gguf_file_is_seen(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", arch="gemma2", extra={"attention.sliding_window": 128})
    assert read_model(path).kind == "sliding+full"


@pytest.mark.parametrize(
    ("arch", "facts", "expected"),
    [
        pytest.param(
            "deepseek2",
            {"attention.kv_lora_rank": 512, "attention.q_lora_rank": 1536, "rope.dimension_count": 64,
             "attention.key_length_mla": 192, "attention.value_length_mla": 128, "attention.head_count_kv": 1},
            {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
            id="MLA",
        ),
        pytest.param(
            "qwen3next",
            {"attention.head_count_kv": [0, 0, 0, 2], "ssm.inner_size": 4096, "ssm.state_size": 128,
             "ssm.group_count": 16, "ssm.conv_kernel": 4},
            {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_num_value_heads": 32},
            id="layers without KV heads are recurrent",
        ),
        pytest.param(
            "gpt-oss",
            {"attention.sliding_window": 128, "attention.sliding_window_pattern": [True, False, True, False]},
            {"layer_types": ["sliding_attention", "full_attention"] * 2},
            id="a pattern of windows",
        ),
    ],
)  # fmt: skip
def test_gguf_keys_say_what_config_keys_say(arch: str, facts: dict[str, Any], expected: dict[str, Any]) -> None:
    values = {"general.architecture": arch, f"{arch}.block_count": 4, f"{arch}.attention.head_count": 16}
    config = config_of({**values, **{f"{arch}.{key}": value for key, value in facts.items()}}, "m.gguf")
    assert {key: config[key] for key in expected} == expected


# --- safetensors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [0, 3])
def test_a_folders_weights_are_counted_to_the_byte(tmp_path: Path, shards: int) -> None:
    shape = read_model(write_folder(tmp_path / "m", shards=shards))
    assert shape.weight_bytes == 2 * PARAMETERS
    assert shape.assumptions == ()
    assert count(shape).total == PARAMETERS


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    for index in (True, False):  # the numbers in the names say it too
        if not index:
            (folder / INDEX).unlink()
        with pytest.raises(WeightsError, match=r"lacks model-00002-of-00003\.safetensors \(1 of 3 missing\)"):
            read_model(folder)


def test_weights_that_a_folder_holds_twice_are_counted_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    save_file({f"mistral.{k}": v for k, v in tensors().items()}, folder / "consolidated.safetensors")
    save_file({"lora": np.zeros(9, dtype=np.float16)}, folder / "adapter_model.safetensors")
    assert read_model(folder).weight_bytes == 2 * PARAMETERS
    only = checkpoint_in(folder, mistral=True)
    assert only is not None
    assert only.weight_bytes == 2 * PARAMETERS


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    file = write_folder(tmp_path / "m") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(WeightsError, match="10 fewer than its header says; download the file again"):
        read_model(tmp_path / "m")


def test_tensors_that_two_files_hold_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    save_file({"norm": np.zeros(HIDDEN, dtype=np.float16)}, folder / "second.safetensors")
    with pytest.raises(WeightsError, match=r"holds tensor norm, which model\.safetensors holds too"):
        checkpoint_in(folder)


def test_a_checkpoint_of_another_size_is_said(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "intermediate_size": 960}))
    assert any("elements where its configuration gives" in note for note in read_model(folder).assumptions)


def test_modelopts_own_file_is_read_beside_the_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    told = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(told))
    shape = read_model(folder)
    assert (shape.weights.name, shape.kv_dtype) == ("FP8", "FP8E4M3")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "holds none of config.json, params.json, *.gguf"),
        ({"a.gguf": b"", "b.gguf": b""}, "holds 2 .gguf files; give one of them"),
        ({"only.gguf": b""}, "is empty; download the file again"),
        ({"config.json": b"{"}, "is not JSON (line 1"),
        ({"config.json": b"\x80abc"}, "is not JSON (not UTF-8)"),
        ({"config.json": json.dumps(CONFIG).encode(), "m.safetensors": b"12"}, "has 2 bytes and so no safetensors"),
        ({"config.json": json.dumps(CONFIG).encode(), "m.safetensors": b"\xff" * 64}, "it is no safetensors file"),
        ({"config.json": json.dumps(CONFIG).encode(), INDEX: b"{}"}, "has no weight_map"),
        (
            {"config.json": json.dumps(CONFIG).encode(), INDEX: b'{"weight_map": {"a": "../b.safetensors"}}'},
            "names the file ../b.safetensors, which is not beside it",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as raised:
        read_model(tmp_path)
    assert said in str(raised.value)


def test_a_path_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there; give a model's folder"):
        read_model(tmp_path / "nothing")


# --- params.json ------------------------------------------------------------------------------------------------------

PARAMS: dict[str, Any] = {
    "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
    "norm_eps": 1e-5, "vocab_size": 32768, "rope_theta": 1e6, "max_seq_len": 32768,
}  # fmt: skip


def test_mistrals_own_format_gives_the_same_model() -> None:
    assert total_parameters(from_params(PARAMS)) == 7_248_023_552


def test_a_params_file_is_known_by_its_keys(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps(PARAMS))
    assert read_model(tmp_path).layers == 32


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"sliding_window": 4096}, "sliding"),
        ({"sliding_window": [None, 4096, 4096, 4096]}, "full+sliding"),
        ({"moe": {"num_experts": 8, "num_experts_per_tok": 2}}, "full"),
        ({"kv_lora_rank": 256, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 128}, "mla"),
    ],
)
def test_params_keys_say_what_config_keys_say(changes: dict[str, Any], kind: str) -> None:
    assert from_params({**PARAMS, **changes}).kind == kind


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window": [1, 2]}, "one size of window is known"),
        ({"kv_squeeze": 2}, "kv_squeeze is 2: not a known key of Mistral's format"),
        ({"quantization": {"qformat_weight": "int1"}}, 'qformat_weight is "int1"; known: fp8_e4m3'),
        ({"n_layers": None}, "num_hidden_layers is missing"),
    ],
)
def test_params_that_cannot_be_read_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError) as raised:
        from_params({**PARAMS, **changes})
    assert said in str(raised.value)


def test_states_of_a_gguf_hybrid_are_kept(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "general.architecture": "granitehybrid", "tokenizer.ggml.tokens": VOCAB,
        **{f"granitehybrid.{key}": value for key, value in {
            "block_count": 4, "embedding_length": 512, "feed_forward_length": 1024, "context_length": 4096,
            "attention.head_count": 8, "attention.head_count_kv": [0, 0, 0, 2], "ssm.inner_size": 1024,
            "ssm.state_size": 128, "ssm.group_count": 1, "ssm.conv_kernel": 4, "ssm.time_step_rank": 16,
        }.items()},
    }  # fmt: skip
    from kvbudget.shapes.config import from_config

    shape = from_config(config_of(values, "m.gguf"))
    states = [group for group in shape.groups if isinstance(group.cache, StateCache)]
    assert [(group.layers, group.cache.heads) for group in states if isinstance(group.cache, StateCache)] == [
        ((0, 1, 2), 16)
    ]
