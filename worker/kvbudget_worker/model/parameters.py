"""The decoder's weights as it computes with them: Q, K and V fused into one matrix, gate and up into another.

Fusing needs no second copy of a checkpoint: each fused matrix is allocated once, in its final dtype, and filled row
block by row block from the mapped file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch

from kvbudget.errors import ShapeError
from kvbudget_worker.model.config import ModelConfig
from kvbudget_worker.weights import Checkpoint

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """``qkv``: [query + 2 * kv, hidden]; ``output``: [hidden, query]; ``gate_up``: [2 * intermediate, hidden];
    ``down``: [hidden, intermediate]; norms: [hidden]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Parameters:
    """``embedding`` and ``head``: [vocab, hidden], the same tensor when they are tied."""

    embedding: torch.Tensor
    layers: tuple[LayerParameters, ...]
    final_norm: torch.Tensor
    head: torch.Tensor

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor once."""
        yield self.embedding
        yield self.final_norm
        if self.head is not self.embedding:
            yield self.head
        for layer in self.layers:
            for f in fields(layer):
                value = getattr(layer, f.name)
                if value is not None:
                    yield value

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors())


def layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """A layer's tensors by Hugging Face's names below ``model.layers.<n>.``, with the shapes the config asks for."""
    hidden, query, kv, ffn = config.hidden_size, config.query_size, config.kv_size, config.intermediate_size
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if config.qkv_bias:
        shapes |= {"self_attn.q_proj.bias": (query,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    return shapes


def checkpoint_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor that a checkpoint of this config holds, by Hugging Face's names."""
    vocabulary = (config.vocab_size, config.hidden_size)
    top: dict[str, Shape] = {"model.embed_tokens.weight": vocabulary, "model.norm.weight": (config.hidden_size,)}
    if not config.tied_embeddings:
        top["lm_head.weight"] = vocabulary
    layer = layer_shapes(config).items()
    return top | {f"model.layers.{n}.{part}": shape for n in range(config.layers) for part, shape in layer}


def load_parameters(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Parameters:
    """Read all weights. Raises WeightsError for a missing tensor, ShapeError for one of another shape than the
    config's."""
    config = checkpoint.config
    reader = _Reader(checkpoint, dtype, device)
    vocabulary = (config.vocab_size, config.hidden_size)
    embedding = reader.one("model.embed_tokens.weight", vocabulary)
    return Parameters(
        embedding=embedding,
        layers=tuple(_layer(reader, config, n) for n in range(config.layers)),
        final_norm=reader.one("model.norm.weight", (config.hidden_size,)),
        head=embedding if config.tied_embeddings else reader.one("lm_head.weight", vocabulary),
    )


def _layer(reader: "_Reader", config: ModelConfig, number: int) -> LayerParameters:
    shapes = layer_shapes(config)

    def rows(*parts: str) -> torch.Tensor:
        return reader.rows([(f"model.layers.{number}.{p}", shapes[p]) for p in parts])

    qkv = [f"self_attn.{p}_proj" for p in "qkv"]
    return LayerParameters(
        input_norm=rows("input_layernorm.weight"),
        qkv=rows(*(f"{p}.weight" for p in qkv)),
        qkv_bias=rows(*(f"{p}.bias" for p in qkv)) if config.qkv_bias else None,
        output=rows("self_attn.o_proj.weight"),
        output_bias=rows("self_attn.o_proj.bias") if config.output_bias else None,
        post_norm=rows("post_attention_layernorm.weight"),
        gate_up=rows("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        down=rows("mlp.down_proj.weight"),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device

    def one(self, name: str, shape: Shape) -> torch.Tensor:
        return self.rows([(name, shape)])

    def rows(self, parts: list[tuple[str, Shape]]) -> torch.Tensor:
        """The named tensors one below the other."""
        total = sum(shape[0] for _, shape in parts)
        fused = torch.empty((total, *parts[0][1][1:]), dtype=self.dtype, device=self.device)
        at = 0
        for name, shape in parts:
            found = self.checkpoint.tensor(name)
            if tuple(found.shape) != shape:
                raise ShapeError(
                    self.checkpoint.path,
                    f"tensor {name} is {list(found.shape)}, its config asks for {list(shape)}: "
                    "the weights and the config belong to different models",
                )
            fused[at : at + shape[0]].copy_(found)
            at += shape[0]
        return fused
