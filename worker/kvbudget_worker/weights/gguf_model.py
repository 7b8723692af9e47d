"""What GGUF calls a llama-family model: header keys, tensor names, and its row order of Q and K.

GGUF ``llama`` files hold Q and K rows so that RoPE rotates neighbours (0, 1), (2, 3), …; Hugging Face, and we, rotate
(i, i + head_dim/2). Read in the wrong order every shape still fits and the text is nonsense, so
:func:`undo_permutation` restores the order once, while loading.
"""

from typing import Any

from kvbudget.errors import ShapeError, UnsupportedError
from kvbudget_worker.model.config import Family, ModelConfig, Rope, is_positive
from kvbudget_worker.weights.dequant import Floats
from kvbudget_worker.weights.gguf import GGUFFile

_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_FAMILIES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2"}


def to_gguf_name(name: str) -> str:
    """
    >>> to_gguf_name("model.layers.7.self_attn.q_proj.weight"), to_gguf_name("lm_head.weight")
    ('blk.7.attn_q.weight', 'output.weight')
    """
    stem, _, leaf = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{leaf}"
    _, _, number, part = stem.split(".", 3)
    return f"blk.{number}.{_LAYER[part]}.{leaf}"


def undo_permutation(name: str, values: Floats, config: ModelConfig) -> Floats:
    """Q and K rows (weights and biases) of the llama family in Hugging Face's order; all else as it is."""
    if config.family != "llama":
        return values
    if ".self_attn.q_proj." in name:
        heads = config.attention_heads
    elif ".self_attn.k_proj." in name:
        heads = config.kv_heads
    else:
        return values
    split = values.reshape(heads, config.head_dim // 2, 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


def parse_header(file: GGUFFile) -> ModelConfig:
    """Raises ShapeError for a missing or wrong key, UnsupportedError for an architecture that we do not run."""
    path = str(file.path)
    architecture = file.metadata.get("general.architecture")
    if architecture not in _FAMILIES:
        raise UnsupportedError(path, f"architecture {architecture!r} is not supported; {', '.join(_FAMILIES)} are")
    if "rope_freqs.weight" in file.tensors:
        raise UnsupportedError(
            path, "RoPE frequency factors in GGUF are not supported yet: use the safetensors weights"
        )
    family = _FAMILIES[architecture]
    get = _Keys(file, architecture)
    heads = get.whole("attention.head_count")
    hidden = get.whole("embedding_length")
    head_dim = get.whole("attention.key_length", hidden // heads)
    if get.whole("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedError(path, "RoPE over a part of the head is not supported yet")
    return ModelConfig(
        family=family,
        layers=get.whole("block_count"),
        hidden_size=hidden,
        intermediate_size=get.whole("feed_forward_length"),
        attention_heads=heads,
        kv_heads=get.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=get.whole("vocab_size", len(file.metadata.get("tokenizer.ggml.tokens", ()))),
        max_position_embeddings=get.whole("context_length"),
        rope=_rope(get, path),
        rms_norm_eps=get.number("attention.layer_norm_rms_epsilon", 1e-5),
        tied_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        eos_ids=tuple(
            int(file.metadata[key])
            for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
            if key in file.metadata
        ),
    )


def _rope(get: "_Keys", path: str) -> Rope:
    theta = get.number("rope.freq_base", 10_000.0)
    kind = get.raw("rope.scaling.type", "none")
    if kind == "none":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", factor=get.number("rope.scaling.factor", 1.0))
    raise UnsupportedError(path, f"RoPE scaling {kind!r} is not supported in GGUF; none and linear are")


class _Keys:
    """Typed access to ``<architecture>.<key>``."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file = file
        self._prefix = architecture

    def raw(self, key: str, default: Any) -> Any:
        return self._file.metadata.get(f"{self._prefix}.{key}", default)

    def whole(self, key: str, default: int = 0) -> int:
        value: Any = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ShapeError(f"{self._file.path}: {self._prefix}.{key}", f"is {value!r}: the header is incomplete")
        return int(value)

    def number(self, key: str, default: float) -> float:
        value = self.raw(key, default)
        if not is_positive(value):
            raise ShapeError(f"{self._file.path}: {self._prefix}.{key}", f"is {value!r}, not a positive number")
        return float(value)
