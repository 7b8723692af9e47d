"""Our GGUF reader against the `gguf` package."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.errors import UnsupportedError, WeightsError
from kvbudget_worker.tokenizer import Tokenizer
from kvbudget_worker.weights import open_checkpoint
from kvbudget_worker.weights.dequant import TYPES, dequantise
from kvbudget_worker.weights.gguf import GGUFFile
from support.laws import share

QUANTS = {0: gguf.GGMLQuantizationType.F32, 1: gguf.GGMLQuantizationType.F16, 3: gguf.GGMLQuantizationType.Q4_1}
QUANTS |= {8: gguf.GGMLQuantizationType.Q8_0, 30: gguf.GGMLQuantizationType.BF16}


def _write(path: Path) -> dict[str, np.ndarray]:
    """A file with one tensor of each type; returns the values that the oracle reads."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("some.floats", [1.5, -2.5])
    writer.add_array("some.texts", ["a", "bé", ""])
    writer.add_bool("some.flag", True)
    expected = {}
    values = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    for kind in QUANTS.values():
        raw = gguf.quantize(values, kind)
        writer.add_tensor(f"t.{kind.name}", raw, raw_dtype=kind)
        expected[f"t.{kind.name}"] = gguf.dequantize(raw, kind).reshape(6, 64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def test_every_tensor_type_is_read_as_the_oracle_reads_it(tmp_path: Path) -> None:
    expected = _write(tmp_path / "m.gguf")
    file = GGUFFile(tmp_path / "m.gguf")
    assert set(file.tensors) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(file.tensor(name), values)
    assert file.metadata["llama.block_count"] == 3
    assert file.metadata["some.floats"] == [1.5, -2.5]
    assert file.metadata["some.texts"] == ["a", "bé", ""]
    assert file.metadata["some.flag"] is True


@pytest.mark.parametrize("number", list(TYPES))
@given(data=st.data())
def test_any_bytes_decode_as_the_oracle_decodes_them(number: int, data: st.DataObject) -> None:
    kind = TYPES[number]
    raw = np.frombuffer(data.draw(st.binary(min_size=4 * kind.block_bytes, max_size=4 * kind.block_bytes)), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, QUANTS[number]).reshape(-1)
        np.testing.assert_array_equal(dequantise(raw, kind, 4 * kind.block), expected)


@share(0.5)
@given(cut=st.floats(min_value=0, max_value=1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused_by_its_path(cut: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "cut-gguf"
    folder.mkdir(exist_ok=True)
    whole = folder / "whole.gguf"
    if not whole.exists():
        _write(whole)
    content = whole.read_bytes()
    part = folder / "part.gguf"
    # The last tensor may be followed by padding, which nobody needs.
    part.write_bytes(content[: int((len(content) - 64) * cut)])
    with pytest.raises(WeightsError, match=str(part)):
        GGUFFile(part)


def test_an_unknown_tensor_type_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    raw = np.zeros((4, 210), np.uint8)
    writer.add_tensor("t", raw, raw_dtype=gguf.GGMLQuantizationType.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match=r"tensor t has type number 14; we read F32, F16, Q4_1, Q8_0, BF16"):
        GGUFFile(tmp_path / "m.gguf")


@pytest.mark.weights
def test_the_real_file_is_read_as_the_oracle_reads_it(smollm2_gguf: Path) -> None:
    oracle = {t.name: t for t in gguf.GGUFReader(str(smollm2_gguf)).tensors}
    file = GGUFFile(smollm2_gguf)
    assert set(file.tensors) == set(oracle)
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
        expected = gguf.dequantize(oracle[name].data, oracle[name].tensor_type)
        np.testing.assert_array_equal(file.tensor(name), expected)


@pytest.mark.weights
def test_the_converted_folder_is_the_file_rounded_to_bf16(smollm2: Path, smollm2_gguf: Path) -> None:
    folder, file = open_checkpoint(smollm2), open_checkpoint(smollm2_gguf)
    assert folder.config.rms_norm_eps == pytest.approx(file.config.rms_norm_eps, rel=1e-6)
    for name in ("model.embed_tokens.weight", "model.layers.3.self_attn.k_proj.weight", "model.norm.weight"):
        assert torch.equal(folder.tensor(name), file.tensor(name).bfloat16())


@pytest.mark.weights
def test_the_tokenizer_in_the_file_is_the_folders(smollm2: Path, smollm2_gguf: Path) -> None:
    folder, file = Tokenizer.load(smollm2), Tokenizer.load(smollm2_gguf)
    messages = [{"role": "user", "content": "Hello, world! 2024 ünï 🦙"}]
    assert file.chat(messages) == folder.chat(messages)
    assert file.eos_ids == folder.eos_ids == (2,)
