"""From a device's memory to KV tokens, with every term kept.

    usable  = memory × memoryPercent ÷ 100                     (rounded down; the rest is headroom)
    kv      = usable − weights − activations − graphs − runtime
    pages   = ⌊kv ÷ page⌋ − 1                                  (one page is held back as the worker's scratch)
    tokens  = pages × page tokens

for each pipeline stage; the stage with the fewest pages decides. Llama-3.1-8B in BF16 on 80 GiB with 90%:

>>> from kvbudget.served import named
>>> b = compute(BudgetInput(shape=named("meta-llama/Llama-3.1-8B"), memory_bytes=80 * 2**30, memory_percent=90,
...     device="gpu", kv_precision="BF16", weight_precision="BF16", page_tokens=64, tensor_parallel=1,
...     pipeline_parallel=1, max_batched_tokens=2048, max_sequences=256))
>>> b.usable_bytes, b.worst.weight_bytes, b.worst.activation_bytes, b.worst.runtime_bytes
(77309411328, 16060522496, 481861632, 838860800)
>>> 77309411328 - 16060522496 - 481861632 - 838860800
59928166400
>>> b.worst.page_bytes, b.worst.kv_bytes // b.worst.page_bytes - 1
(8388608, 7142)
>>> b.pages, b.tokens, b.worst.remainder_bytes
(7142, 457088, 8339456)
"""

from dataclasses import dataclass
from typing import Final

from kvbudget import layout, parameters
from kvbudget.gpu import SPLIT_CTAS, DeviceKind, runtime_bytes
from kvbudget.layout import KVPrecision
from kvbudget.parameters import WeightPrecision
from kvbudget.shape import ModelShape

SAMPLER_BYTES_PER_LOGIT: Final = 14
"""Peak of the sampler per sequence and vocabulary entry: logits in FP32, their sorted copy and probabilities. Fitted on
57 runs of vLLM 0.17 to 0.19; the bundled sampler keeps the same buffers."""
_FP32_BYTES: Final = 4
_TILE_ROWS: Final = 16
"""Query rows of the decode kernel's tile: group sizes are padded to a power of two, at least this."""
RESERVED_PAGES: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetInput:
    """All that the budget depends on. ``memory_bytes`` is that of one device. Counts are 1 or more, ``memory_percent``
    is 1 to 100, precisions are names of ``layout`` and ``parameters``; ``pipeline_parallel`` is at most the layers."""

    shape: ModelShape
    memory_bytes: int
    memory_percent: int
    device: DeviceKind
    kv_precision: KVPrecision
    weight_precision: WeightPrecision
    page_tokens: int
    tensor_parallel: int
    pipeline_parallel: int
    max_batched_tokens: int
    max_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBudget:
    """The terms of one rank of a pipeline stage, in bytes. Exactly: usable = weight + activation + graph + runtime + kv
    and kv = (pages + reserved_pages) × page + remainder. ``kv_bytes`` is negative where the rest alone is too large;
    there, and where not even the scratch page fits, ``pages`` and ``reserved_pages`` are 0."""

    stage: int
    layers: int
    weight_bytes: int
    sampler_bytes: int
    prefill_bytes: int
    split_bytes: int
    graph_bytes: int
    runtime_bytes: int
    kv_bytes: int
    page_bytes: int
    pages: int
    reserved_pages: int

    @property
    def activation_bytes(self) -> int:
        """The larger of sampler and prefill (they never run at once), and the split workspace."""
        return max(self.sampler_bytes, self.prefill_bytes) + self.split_bytes

    @property
    def remainder_bytes(self) -> int:
        """KV bytes that do not fill a page."""
        return self.kv_bytes - (self.pages + self.reserved_pages) * self.page_bytes

    @property
    def fixed_bytes(self) -> int:
        """All that is not KV."""
        return self.weight_bytes + self.activation_bytes + self.graph_bytes + self.runtime_bytes


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one replica. ``worst`` is the stage that decides; pages are the same on every rank."""

    inputs: BudgetInput
    stages: tuple[StageBudget, ...]

    @property
    def worst(self) -> StageBudget:
        return min(self.stages, key=lambda s: (s.pages, s.kv_bytes))

    @property
    def usable_bytes(self) -> int:
        return usable_bytes(self.inputs.memory_bytes, self.inputs.memory_percent)

    @property
    def headroom_bytes(self) -> int:
        return self.inputs.memory_bytes - self.usable_bytes

    @property
    def pages(self) -> int:
        """Pages that can be granted."""
        return self.worst.pages

    @property
    def tokens(self) -> int:
        return self.pages * self.inputs.page_tokens

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the rank that decides."""
        return self.worst.page_bytes // self.inputs.page_tokens

    def pages_for(self, tokens: int) -> int:
        """Pages that a sequence of ``tokens`` tokens needs."""
        return layout.pages_for(tokens, self.inputs.page_tokens)

    def holds(self, tokens: int) -> bool:
        """Whether one sequence of ``tokens`` tokens fits."""
        return self.pages_for(tokens) <= self.pages

    def sequences(self, tokens: int) -> int:
        """Sequences of ``tokens`` tokens that fit at once."""
        return self.pages // self.pages_for(tokens)

    def usable_to_hold(self, tokens: int) -> int:
        """The least usable bytes of a device with which a sequence of ``tokens`` tokens fits, all else equal."""
        pages = self.pages_for(tokens) + RESERVED_PAGES
        return max(s.fixed_bytes + pages * s.page_bytes for s in self.stages)

    def memory_to_hold(self, tokens: int) -> int:
        """The least memory of a device, in bytes, that gives these usable bytes."""
        return -(-self.usable_to_hold(tokens) * 100 // self.inputs.memory_percent)


def usable_bytes(memory_bytes: int, memory_percent: int) -> int:
    """Share of a device's memory that the budget may use.

    >>> usable_bytes(24159191040, 90)
    21743271936
    """
    return memory_bytes * memory_percent // 100


def compute(inputs: BudgetInput) -> Budget:
    """The budget, stage by stage. Total for inputs within their bounds: nothing is raised because little fits."""
    return Budget(inputs, tuple(_stage(inputs, stage) for stage in range(inputs.pipeline_parallel)))


def _stage(inputs: BudgetInput, stage: int) -> StageBudget:
    shape, tp, pp = inputs.shape, inputs.tensor_parallel, inputs.pipeline_parallel
    layers = layout.stage_layers(shape.layers, pp)[stage]
    terms = {
        "weight_bytes": parameters.weight_bytes(
            shape, inputs.weight_precision, tensor_parallel=tp, pipeline_parallel=pp, stage=stage
        ),
        "sampler_bytes": sampler_bytes(shape, inputs.max_sequences) if stage == pp - 1 else 0,
        "prefill_bytes": prefill_bytes(
            shape, inputs.max_batched_tokens, tensor_parallel=tp, element_bytes=_computed_bytes(inputs)
        ),
        "split_bytes": split_bytes(shape, inputs.max_sequences, tensor_parallel=tp) if inputs.device == "gpu" else 0,
        "graph_bytes": 0,  # the bundled engine captures no graphs
        "runtime_bytes": runtime_bytes(inputs.device, tensor_parallel=tp, pipeline_parallel=pp),
    }
    activation = max(terms["sampler_bytes"], terms["prefill_bytes"]) + terms["split_bytes"]
    fixed = terms["weight_bytes"] + activation + terms["graph_bytes"] + terms["runtime_bytes"]
    kv = usable_bytes(inputs.memory_bytes, inputs.memory_percent) - fixed
    page = layout.page_bytes(shape, inputs.kv_precision, inputs.page_tokens, tensor_parallel=tp, layers=layers)
    whole = max(0, kv // page)
    reserved = min(whole, RESERVED_PAGES)
    return StageBudget(
        stage=stage,
        layers=layers,
        **terms,
        kv_bytes=kv,
        page_bytes=page,
        pages=whole - reserved,
        reserved_pages=reserved,
    )


def sampler_bytes(shape: ModelShape, max_sequences: int) -> int:
    """Peak of sampling one token for every sequence. Logits are gathered in full on each rank, so tensor parallelism
    does not lower it; only the last pipeline stage samples.

    >>> from kvbudget.served import named
    >>> sampler_bytes(named("SmolLM2-135M-Instruct"), 256)
    176160768
    """
    return max_sequences * shape.vocab_size * SAMPLER_BYTES_PER_LOGIT


def _computed_bytes(inputs: BudgetInput) -> int:
    """Bytes of a number between two layers: the CPU backend computes in FP32 whatever the weights are."""
    return 4 if inputs.device == "cpu" or inputs.weight_precision == "FP32" else 2


def prefill_bytes(
    shape: ModelShape, max_batched_tokens: int, *, tensor_parallel: int = 1, element_bytes: int = 2
) -> int:
    """Peak of one layer over a full batch of prompt tokens: gate, up and their product, and four rows as wide as the
    residual stream, each number ``element_bytes`` long.

    >>> from kvbudget.served import named
    >>> prefill_bytes(named("SmolLM2-135M-Instruct"), 2048)
    28311552
    """
    ffn = -(-shape.intermediate_size // tensor_parallel)
    return max_batched_tokens * (3 * ffn + 4 * shape.hidden_size) * element_bytes


def split_bytes(shape: ModelShape, max_sequences: int, *, tensor_parallel: int = 1) -> int:
    """Workspace of the decode kernel that splits long sequences: partial outputs and their log-sum-exp in FP32, for the
    most pieces that the plan can make, ``⌈programs ÷ kv heads⌉ + sequences``.

    >>> from kvbudget.served import named
    >>> split_bytes(named("SmolLM2-135M-Instruct"), 256)
    5865600
    """
    kv_heads = layout.kv_heads_per_rank(shape.kv_heads, tensor_parallel)
    group = -(-shape.attention_heads // tensor_parallel) // kv_heads
    rows = max(_TILE_ROWS, 1 << max(0, group - 1).bit_length())
    pieces = -(-SPLIT_CTAS // kv_heads) + max_sequences
    return pieces * kv_heads * rows * (shape.head_dim + 1) * _FP32_BYTES
