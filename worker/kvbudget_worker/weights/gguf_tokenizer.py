"""A `tokenizers` tokenizer rebuilt from a GGUF file's vocabulary, merges and pre-tokenizer name."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from kvbudget.errors import UnsupportedError, WeightsError
from kvbudget_worker.weights.gguf import GGUFFile

_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPLITS = {"llama-bpe": _LLAMA3_SPLIT, "qwen2": _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")}
_NAMED_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def rebuild(file: GGUFFile) -> tuple[Tokenizer, Mapping[str, Any]]:
    """The tokenizer, and the content of a tokenizer_config.json (named tokens, chat template).

    Raises UnsupportedError for a model other than byte-level BPE, WeightsError for an incomplete header."""
    meta = file.metadata
    path = str(file.path)
    if meta.get("tokenizer.ggml.model") != "gpt2":
        raise UnsupportedError(
            path, f"tokenizer {meta.get('tokenizer.ggml.model')!r} in GGUF is not supported; byte-level BPE (gpt2) is"
        )
    try:
        texts, merges = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.merges"]
    except KeyError as e:
        raise WeightsError(path, f"has no {e.args[0]}: it is no complete model") from None
    vocabulary = {text: i for i, text in enumerate(texts)}
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, [_pair(m) for m in merges], fuse_unk=False))
    except Exception as e:  # noqa: BLE001 (tokenizers raises bare Exception)
        raise WeightsError(path, f"its vocabulary and merges do not fit together ({e}): the file is damaged") from None
    tokenizer.pre_tokenizer = _pre_tokenizer(meta.get("tokenizer.ggml.pre", "default"), path)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    kinds = meta.get("tokenizer.ggml.token_type", [])
    for text, kind in zip(texts, kinds, strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            tokenizer.add_tokens([AddedToken(text, special=kind == _CONTROL, normalized=False)])
    config = {name: texts[meta[key]] for name, key in _NAMED_TOKENS.items() if meta.get(key, len(texts)) < len(texts)}
    if "tokenizer.chat_template" in meta:
        config["chat_template"] = meta["tokenizer.chat_template"]
    return tokenizer, config


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(name: str, path: str) -> Any:
    if name == "smollm":
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if name in ("gpt-2", "default"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _SPLITS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[name]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise UnsupportedError(path, f"pre-tokenizer {name!r} is not supported; smollm, gpt-2, llama-bpe and qwen2 are")
