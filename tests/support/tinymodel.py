"""A tiny llama-family model with random weights, as a folder that the worker, `transformers` and clients can load.

Its tokenizer has one token per byte, three special tokens and a ChatML template: every text round-trips, and token
counts are byte counts.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvbudget.layout import page_bytes
from kvbudget.plan import Plan, PlanBudget, PlanEngine, PlanGPU, PlanKV, PlanLimits, PlanModel
from kvbudget.shape import ModelShape

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 320  # 256 bytes and the special tokens; the rest are ids that no token has, as real models have them
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyModel:
    """What to make. ``family`` is "llama" or "qwen2" (biases on Q, K and V). ``dtype`` names torch's."""

    family: str = "llama"
    layers: int = 2
    hidden_size: int = 64
    intermediate_size: int = 128
    attention_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    max_position_embeddings: int = 2048
    tied_embeddings: bool = True
    attention_bias: bool = False
    rope: tuple[tuple[str, object], ...] = (("rope_type", "default"),)
    dtype: str = "float32"
    seed: int = 0

    @property
    def shape(self) -> ModelShape:
        return ModelShape(
            layers=self.layers,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            attention_heads=self.attention_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=self.max_position_embeddings,
            tied_embeddings=self.tied_embeddings,
        )

    @property
    def config(self) -> dict[str, object]:
        """Its config.json."""
        return {
            "architectures": ["Qwen2ForCausalLM" if self.family == "qwen2" else "LlamaForCausalLM"],
            "model_type": self.family,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.attention_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": 10000.0,
            "rope_scaling": None if dict(self.rope)["rope_type"] == "default" else dict(self.rope),
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied_embeddings,
            "attention_bias": self.attention_bias,
            "bos_token_id": VOCAB_SIZE - 1,
            "eos_token_id": 258,
            "torch_dtype": self.dtype,
        }


def make_tiny_model(folder: Path, model: TinyModel | None = None) -> Path:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json into ``folder``; returns it."""
    model = model or TinyModel()
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", model.config)
    _write_weights(folder / "model.safetensors", model)
    _write_tokenizer(folder)
    return folder


def tiny_plan(
    folder: Path,
    model: TinyModel | None = None,
    *,
    pages: int = 64,
    page_tokens: int = 16,
    precision: str = "BF16",
    weight_precision: str = "FP32",
    resource_name: str = "cpu",
    max_model_len: int = 512,
    max_batched_tokens: int = 128,
    max_sequences: int = 16,
    queue_tokens: int = 0,
    drain_timeout_seconds: int = 30,
    prefix_cache_mode: str = "Shared",
) -> Plan:
    """A Plan that serves the model in ``folder`` with a pool of ``pages`` grantable pages; its figures add up."""
    shape = (model or TinyModel()).shape
    page = page_bytes(shape, precision, page_tokens)
    kv_bytes = (pages + 1) * page
    weights = (folder / "model.safetensors").stat().st_size if folder.is_dir() else folder.stat().st_size
    return Plan(
        service_name="tiny",
        namespace="test",
        model=PlanModel(name="tiny", weights_path=str(folder), weight_precision=weight_precision, shape=shape),
        gpu=PlanGPU(class_name="test", resource_name=resource_name, tensor_parallel=1, pipeline_parallel=1, count=1),
        budget=PlanBudget(
            gpu_memory_bytes=weights + kv_bytes,
            usable_bytes=weights + kv_bytes,
            weight_bytes=weights,
            activation_bytes=0,
            graph_bytes=0,
            runtime_bytes=0,
            kv_bytes=kv_bytes,
            remainder_bytes=0,
            page_bytes=page,
            pages=pages,
            reserved_pages=1,
            tokens=pages * page_tokens,
            kv_bytes_per_token=page // page_tokens,
            sequences_at_max_len=pages * page_tokens // max_model_len,
            precision=precision,
        ),
        kv=PlanKV.model_validate(
            {
                "precision": precision,
                "page_tokens": page_tokens,
                "pages": pages,
                "reserved_pages": 1,
                "page_bytes": page,
                "prefix_cache_mode": prefix_cache_mode,
            }
        ),
        limits=PlanLimits(
            max_model_len=max_model_len,
            max_input_tokens=max_model_len - 1,
            max_output_tokens=max_model_len - 1,
            default_output_tokens=min(64, max_model_len - 1),
            tokens_in_flight=pages * page_tokens,
            queue_tokens=queue_tokens,
            queue_max_wait_seconds=5 if queue_tokens else 0,
            overload_status=429,
        ),
        engine=PlanEngine(type="Bundled", max_batched_tokens=max_batched_tokens, max_sequences=max_sequences),
        drain_timeout_seconds=drain_timeout_seconds,
    )


def variants() -> Sequence[TinyModel]:
    """MHA, GQA, MQA; tied and untied; with biases; with each position encoding."""
    base = TinyModel()
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    return (
        replace(base, kv_heads=4, tied_embeddings=False),
        replace(base, kv_heads=2),
        replace(base, kv_heads=1, head_dim=32, tied_embeddings=False),
        replace(base, hidden_size=96, attention_heads=6, kv_heads=2, attention_bias=True),
        replace(base, family="qwen2", tied_embeddings=False),
        replace(base, rope=(("rope_type", "linear"), ("factor", 4.0))),
        replace(base, rope=tuple(llama3.items())),
    )


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def _write_weights(path: Path, model: TinyModel) -> None:
    import torch
    from safetensors.torch import save_file

    from kvbudget_worker.model.config import parse_config
    from kvbudget_worker.model.parameters import checkpoint_shapes

    generator = torch.Generator().manual_seed(model.seed)
    tensors = {}
    for name, shape in checkpoint_shapes(parse_config(model.config, "tiny")).items():
        # Wide enough that the likeliest token changes with the context; norms near 1, as trained ones are.
        values = torch.randn(shape, generator=generator) * (0.1 if len(shape) == 1 else 0.25)
        values = values + 1.0 if name.endswith("norm.weight") else values
        tensors[name] = values.to(getattr(torch, model.dtype))
    save_file(tensors, str(path), metadata={"format": "pt"})


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 2048,
        },
    )
