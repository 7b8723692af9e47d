"""``spec.model``: which model, where its files are, and the facts of its shape."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from kvbudget.api.base import (
    MAX_SAFE_INT,
    AbsolutePath,
    ObjectName,
    Rule,
    SpecModel,
    no_parent_path,
)

WeightPrecision = Literal["BF16", "FP16", "FP32", "FP8", "INT8", "INT4"]
KVPrecision = Literal["BF16", "FP16", "FP8E4M3", "INT8", "INT4", "NVFP4"]

ModelName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/:@+-]*[A-Za-z0-9])?$")
]
Reference = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$")]


class HuggingFaceSource(SpecModel):
    """Weights from a Hugging Face repository. Not supported yet."""

    repo: Reference
    """Repository, as owner/name."""
    revision: Reference | None = None
    """Branch, tag or commit; left out: the default branch."""
    token_secret_name: ObjectName | None = None
    """Secret whose key ``token`` holds an access token."""


class PVCSource(SpecModel):
    """Weights from a PersistentVolumeClaim in the service's namespace, mounted read-only."""

    rules: ClassVar[tuple[Rule, ...]] = (no_parent_path("path"),)

    claim_name: ObjectName
    """Name of the claim."""
    path: AbsolutePath = "/"
    """Folder (config.json, model.safetensors, tokenizer.json) or .gguf file inside the volume."""


class ImageSource(SpecModel):
    """Weights from a container image; an init container copies them out. Not supported yet."""

    rules: ClassVar[tuple[Rule, ...]] = (no_parent_path("path"),)

    reference: Reference
    """Image reference."""
    path: AbsolutePath = "/"
    """Folder or .gguf file inside the image."""


class HostPathSource(SpecModel):
    """Weights from a folder of the node. Needs a namespace whose Pod Security level is privileged."""

    rules: ClassVar[tuple[Rule, ...]] = (no_parent_path("path"),)

    path: AbsolutePath
    """Folder or .gguf file on the node."""


def _sources(source: "ModelSource") -> int:
    return sum(value is not None for value in (source.hugging_face, source.pvc, source.image, source.host_path))


class ModelSource(SpecModel):
    """Where the weights come from: exactly one of the fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "OneSource",
            "",
            "(has(self.huggingFace) ? 1 : 0) + (has(self.pvc) ? 1 : 0) + (has(self.image) ? 1 : 0) + "
            "(has(self.hostPath) ? 1 : 0) == 1",
            "set exactly one of pvc, hostPath, huggingFace and image",
            lambda source: _sources(source) == 1,
        ),
    )

    hugging_face: HuggingFaceSource | None = None
    """A Hugging Face repository. Not supported yet."""
    pvc: PVCSource | None = None
    """A PersistentVolumeClaim of the service's namespace, mounted read-only."""
    image: ImageSource | None = None
    """A container image. Not supported yet."""
    host_path: HostPathSource | None = None
    """A folder of the node; needs a namespace whose Pod Security level is privileged."""


class ShapeSpec(SpecModel):
    """Facts of a dense decoder, from its config.json. For a model that kvbudget knows by name, only what differs."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "KVHeadsAboveHeads",
            "kvHeads",
            "!has(self.kvHeads) || !has(self.attentionHeads) || self.kvHeads <= self.attentionHeads",
            "must not be above attentionHeads; config.json calls them num_key_value_heads and num_attention_heads",
            lambda s: s.kv_heads is None or s.attention_heads is None or s.kv_heads <= s.attention_heads,
        ),
    )

    layers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Layers (num_hidden_layers)."""
    hidden_size: Annotated[int, Field(ge=1, le=262144)] | None = None
    """Width of the residual stream (hidden_size)."""
    intermediate_size: Annotated[int, Field(ge=1, le=1048576)] | None = None
    """Width of the feed-forward block (intermediate_size)."""
    attention_heads: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Query heads (num_attention_heads)."""
    kv_heads: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Heads of K and V (num_key_value_heads); left out: attentionHeads."""
    head_dim: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Width of one head (head_dim); left out: hiddenSize ÷ attentionHeads."""
    vocab_size: Annotated[int, Field(ge=1, le=16777216)] | None = None
    """Tokens of the vocabulary (vocab_size)."""
    max_position_embeddings: Annotated[int, Field(ge=1, le=134217728)] | None = None
    """Longest sequence that the model was made for (max_position_embeddings)."""
    tied_embeddings: bool | None = None
    """Input and output embeddings are one tensor (tie_word_embeddings); left out: false."""
    rope_scaling: bool | None = None
    """The position encoding can be stretched beyond maxPositionEmbeddings; left out: false."""
    weight_bytes: Annotated[int, Field(ge=1, le=MAX_SAFE_INT)] | None = None
    """Bytes of the checkpoint; left out: counted from the shape and the weight precision."""


class ModelSpec(SpecModel):
    """The model that is served."""

    name: ModelName | None = None
    """Name that clients use, and by which kvbudget may know the shape; left out: metadata.name."""
    source: ModelSource
    """Where the weights come from."""
    shape: ShapeSpec | None = None
    """Facts of the model; needed where kvbudget does not know it by name."""
    weight_precision: Literal["Auto", "BF16", "FP16", "FP32", "FP8", "INT8", "INT4"] = "Auto"
    """Precision of the weights in memory; Auto: the best that the class offers."""
