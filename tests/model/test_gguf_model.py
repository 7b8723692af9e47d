"""A whole model in a GGUF file: the same text as from its safetensors."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from kvbudget.errors import ShapeError, UnsupportedError, WeightsError
from kvbudget_worker.runner import Runner
from kvbudget_worker.tokenizer import Tokenizer
from kvbudget_worker.weights import open_checkpoint
from support.stepping import alone
from support.tinymodel import CHAT_TEMPLATE, SPECIAL, TinyModel, make_tiny_model, tiny_plan

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _for_neighbours(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order in which GGUF's llama files hold Q and K: row 2i is channel i of a head, row 2i + 1 channel
    i + head_dim/2."""
    head_dim = values.shape[0] // heads
    order = [head * head_dim + (j // 2) + (j % 2) * head_dim // 2 for head in range(heads) for j in range(head_dim)]
    return values[order]


def _write(path: Path, folder: Path, model: TinyModel, **changes: object) -> Path:
    writer = gguf.GGUFWriter(str(path), model.family)
    writer.add_block_count(model.layers)
    writer.add_context_length(model.max_position_embeddings)
    writer.add_embedding_length(model.hidden_size)
    writer.add_feed_forward_length(model.intermediate_size)
    writer.add_head_count(model.attention_heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(320)
    vocab = Tokenizer.load(folder)._fast.get_vocab()
    texts = [*sorted(vocab, key=vocab.__getitem__), "ab"]
    texts += [f"[unused{i}]" for i in range(len(texts), 320)]
    writer.add_tokenizer_model(str(changes.get("tokenizer", "gpt2")))
    writer.add_tokenizer_pre(str(changes.get("pre", "smollm")))
    writer.add_token_list(texts)
    writer.add_token_types([3 if text in SPECIAL else 5 if text.startswith("[unused") else 1 for text in texts])
    writer.add_token_merges([str(changes.get("merge", "a b"))])
    writer.add_eos_token_id(258)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, values in load_file(folder / "model.safetensors").items():
        stem, leaf = name.rsplit(".", 1)
        prefix = ""
        if stem.startswith("model.layers."):
            _, _, number, stem = stem.split(".", 3)
            prefix = f"blk.{number}."
        if model.family == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = model.attention_heads if "q_proj" in stem else model.kv_heads
            values = _for_neighbours(values, heads)
        writer.add_tensor(f"{prefix}{NAMES[stem]}.{leaf}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "model",
    [
        TinyModel(),
        TinyModel(kv_heads=4, tied_embeddings=False),
        TinyModel(family="qwen2", kv_heads=1),
    ],
    ids=["tied GQA", "untied MHA", "qwen2 with biases"],
)
def test_a_gguf_file_generates_as_its_safetensors_do(model: TinyModel, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "hf", model)
    file = _write(tmp_path / "m.gguf", folder, model)
    prompt = list(b"The same text from either file")
    plan = tiny_plan(folder, model, precision="FP32")
    expected = alone(Runner.load(plan, "cpu"), prompt, 24)
    for source in (file, tmp_path):
        moved = plan.model_copy(update={"model": plan.model.model_copy(update={"weights_path": str(source)})})
        runner = Runner.load(moved, "cpu")
        assert alone(runner, prompt, 24) == expected
        assert runner.eos_ids == (258,)


def test_the_tokenizer_comes_out_of_the_file(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "hf")
    file = _write(tmp_path / "m.gguf", folder, TinyModel())
    tokenizer = Tokenizer.load(file)
    text = "naïve 2024 🦙"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert chat == Tokenizer.load(folder).chat([{"role": "user", "content": "hi"}])
    assert tokenizer.encode("cab") == [*tokenizer.encode("c"), 259]
    assert tokenizer.eos_ids == (258,)


@pytest.mark.parametrize("merge", ["a c", "ab", ""])
def test_merges_that_do_not_fit_the_vocabulary_are_refused(merge: str, tmp_path: Path) -> None:
    file = _write(tmp_path / "m.gguf", make_tiny_model(tmp_path / "hf"), TinyModel(), merge=merge)
    with pytest.raises(WeightsError, match=r"m\.gguf: its vocabulary and merges do not fit together"):
        Tokenizer.load(file)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer": "llama"}, "tokenizer 'llama' in GGUF is not supported"),
        ({"pre": "mystery"}, "pre-tokenizer 'mystery' is not supported"),
    ],
)
def test_a_tokenizer_that_cannot_be_rebuilt_is_refused_by_name(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path / "hf")
    with pytest.raises(UnsupportedError, match=words):
        Tokenizer.load(_write(tmp_path / "m.gguf", folder, TinyModel(), **changes))


def _header(path: Path, architecture: str, **numbers: int) -> Path:
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in numbers.items():
        writer.add_uint32(f"{architecture}.{key.replace('__', '.')}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_an_architecture_that_we_do_not_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="architecture 'mamba' is not supported; llama, qwen2 are"):
        open_checkpoint(_header(tmp_path / "m.gguf", "mamba"))


def test_a_header_without_a_size_is_refused_by_key(tmp_path: Path) -> None:
    file = _header(tmp_path / "m.gguf", "llama", attention__head_count=4)
    with pytest.raises(ShapeError, match=r"m\.gguf: llama\.embedding_length: is 0"):
        open_checkpoint(file)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = replace(TinyModel(), layers=1)
    folder = make_tiny_model(tmp_path / "hf", model)
    file = _write(tmp_path / "m.gguf", folder, replace(model, layers=2))
    plan = tiny_plan(folder, replace(model, layers=2))
    plan = plan.model_copy(update={"model": plan.model.model_copy(update={"weights_path": str(file)})})
    with pytest.raises(WeightsError, match=r"m\.gguf: has no tensor blk\.1\.attn_norm\.weight"):
        Runner.load(plan, "cpu")
