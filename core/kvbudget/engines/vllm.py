"""vLLM's budget (V1 engine, 0.10 to 0.33), in the order of its own deductions.

From v1/worker/gpu_worker.py (``determine_available_memory``), v1/worker/utils.py and v1/core/kv_cache_utils.py::

    usable    = ceil(total × gpu_memory_utilization)
    kv        = usable − weights − activation − other − graphs (since 0.21) − images' reserve
    blocks    = kv // bytes per block, the least over all ranks; one is held back when it is tested what fits

>>> from kvbudget.engines.settings import Card, Settings
>>> from kvbudget.engines.result import gib
>>> from kvbudget.shapes.config import from_config
>>> llama = from_config({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256,
...     "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
...     "max_position_embeddings": 131072})
>>> told = Settings(memory_fraction=0.95, max_model_len=8192, weight_bytes=(gib(14.99),))
>>> plan = vllm_budget(llama, Card(name="H100", memory_bytes=gib(79.19)), "0.19.0", told)
>>> round(plan.worst.kv.expected / gib(1), 2), plan.pages.expected, plan.verdict
(58.1, 29747, 'fits')

vLLM 0.19 logged 58.11 GiB and 29,751 blocks.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from kvbudget.engines import activation, vllm_versions
from kvbudget.engines.cachegroups import PoolOptions, pool_of
from kvbudget.engines.compressed import compressed_pool, is_compressed
from kvbudget.engines.replica import Stage, replica_budget
from kvbudget.engines.result import Band, EngineBudget, Pool, StageBudget, Term, exact
from kvbudget.engines.settings import Card, Settings
from kvbudget.engines.stages import kept_caches, kept_span
from kvbudget.engines.vllm_versions import VllmVersion
from kvbudget.engines.weights import stage_weights
from kvbudget.layers import Architecture

ENGINE = "vllm"
DEFAULT_BLOCK_TOKENS = 16


def vllm_budget(arch: Architecture, card: Card, version: str, settings: Settings) -> EngineBudget:
    """The budget of one replica on ``tensor_parallel × pipeline_parallel`` cards of one kind.

    Raises ValueError for a version that cannot be read, and for a model of which no layer keeps anything."""
    return budget_by(vllm_versions.constants(vllm_versions.parse_version(version)), arch, card, version, settings)


def budget_by(rules: VllmVersion, arch: Architecture, card: Card, version: str, settings: Settings) -> EngineBudget:
    """:func:`vllm_budget` with the constants ``rules``, whatever the version's own are."""
    number = vllm_versions.parse_version(version)
    told = with_defaults(settings, card, rules)
    plan = replica_budget(arch, card, told, partial(_stage, number, rules), engine=ENGINE, version=version)
    notes = _notes(arch, told, number, rules)
    return replace(plan, token_line=rules.token_line, assumptions=(*plan.assumptions, *notes))


def _notes(arch: Architecture, told: Settings, number: tuple[int, int], rules: VllmVersion) -> Iterator[str]:
    if not vllm_versions.OLDEST <= number <= vllm_versions.NEWEST:
        version, taken = (".".join(map(str, pair)) for pair in (number, rules.since))
        yield f"vLLM {version} is outside 0.10 to 0.33; the constants of {taken} are taken"
    if told.data_parallel > 1 and arch.is_moe:
        yield "buffers of the all-to-all kernels between copies (DeepEP and others) are not known and not counted"
    if is_compressed(arch):
        yield "pages of compressed caches are those of FlashMLA's layout (fp8_ds_mla); other kernels have other pages"


def with_defaults(settings: Settings, card: Card, rules: VllmVersion) -> Settings:
    """The settings with the engine's defaults for what was left out."""
    tokens, sequences = vllm_versions.default_batch(card.memory_bytes, card.name)
    return replace(
        settings,
        memory_fraction=rules.memory_fraction if settings.memory_fraction is None else settings.memory_fraction,
        max_batched_tokens=tokens if settings.max_batched_tokens is None else settings.max_batched_tokens,
        max_sequences=sequences if settings.max_sequences is None else settings.max_sequences,
        block_tokens=DEFAULT_BLOCK_TOKENS if settings.block_tokens is None else settings.block_tokens,
    )


def stage_pool(arch: Architecture, rules: VllmVersion, told: Settings, kv_format: str, span: tuple[int, int]) -> Pool:
    """The pool of the stage that holds the layers ``span``. ``told`` has its defaults filled in."""
    layers = kept_caches(arch, draft=told.draft_tokens > 0)
    first, last = kept_span(arch, span, draft=told.draft_tokens > 0)
    options = PoolOptions(
        kv_format=kv_format,
        block_tokens=told.block_tokens or DEFAULT_BLOCK_TOKENS,
        in_flight_tokens=(told.max_batched_tokens or 0) * max(rules.batches_in_flight, told.pipeline_parallel),
        tensor_parallel=told.tensor_parallel,
        shares=told.context_parallel,
        prefix_caching=told.prefix_caching,
        draft_tokens=told.draft_tokens,
        hybrid_groups=told.hybrid_groups,
    )
    if is_compressed(arch):
        return compressed_pool(layers, options, packing=rules.packing, first=first, last=last)
    return pool_of(layers, options=options, first=first, last=last)


def _stage(number: tuple[int, int], rules: VllmVersion, at: Stage) -> StageBudget:
    told = at.told
    usable = math.ceil(at.card.memory_bytes * (told.memory_fraction or 1.0))
    terms = _terms(number, rules, at)
    if told.kv_cache_bytes is not None:
        rest = usable - told.kv_cache_bytes
        terms = (Term("all but KV", exact(rest), "kv_cache_memory_bytes replaces every deduction"),)
    return StageBudget(
        stage=at.number,
        layers=at.layers,
        memory_bytes=at.card.memory_bytes,
        usable_bytes=usable,
        terms=terms,
        outside=_outside(rules, at),
        pool=stage_pool(at.arch, rules, told, at.kv_format, at.span),
    )


def _terms(number: tuple[int, int], rules: VllmVersion, at: Stage) -> tuple[Term, ...]:
    source = _ACTIVATION_SOURCE if at.is_last else "prefill of one batch; only the last stage samples"
    terms = [
        Term("weights", *stage_weights(at.arch, at.told, at.number, at.span)),
        Term("activation", _activation(at.arch, rules, at.told, last=at.is_last), source),
        Term(
            "other", _other(at.arch, rules, at.told), "growth outside the tensor allocator, logged by version and ranks"
        ),
    ]
    if rules.graphs_budgeted and not at.told.eager:
        terms.append(Term("graphs", _graphs(at), "estimate of the CUDA graphs, taken off since 0.21"))
    spread = _unmeasured(at.card, number)
    if spread:
        slack = Band(-spread, 0, spread)
        terms.append(Term("not modelled", slack, "version and card of which no complete log was read"))
    return tuple(terms)


_ACTIVATION_SOURCE = "sampler over the vocabulary or prefill of one batch, whichever is larger"


def _graphs(at: Stage) -> Band:
    return vllm_versions.graph_bytes(at.layers, at.told.max_sequences or 1, moe=at.arch.is_moe)


def _activation(arch: Architecture, rules: VllmVersion, told: Settings, *, last: bool) -> Band:
    tokens = told.max_batched_tokens or 1
    sampler = activation.sampler_bytes(
        arch, max_sequences=told.max_sequences or 1, bytes_per_logit=rules.bytes_per_logit
    )
    residual = activation.residual_bytes(arch, tokens)
    images = activation.image_bytes(arch, tokens)
    experts = _expert_workspace(arch, told, tokens)
    prefill = activation.prefill_bytes(arch, tokens, tensor_parallel=told.tensor_parallel) + experts
    if told.pipeline_parallel > 1:  # the hidden states and the residual that travel between stages
        prefill += 2 * residual
    held = experts if rules.held_expert_workspace else 0
    sampling = sampler + residual + held if last else 0
    expected = max(sampling, prefill) + images + vllm_versions.ALLOCATOR.expected * last
    return Band(max(0, expected - expected // 10), expected, expected + expected // 10 + images)


def _expert_workspace(arch: Architecture, told: Settings, tokens: int) -> int:
    """Copies gather their tokens before the experts, so that each rank has the rows of all of them; whole experts are
    as wide as they are, parts of each are divided."""
    ranks = 1 if told.expert_parallel else told.tensor_parallel * told.data_parallel
    return activation.expert_workspace_bytes(arch, tokens * told.data_parallel, tensor_parallel=ranks)


def _communicates(arch: Architecture, told: Settings) -> bool:
    """Whether ranks exchange activations within a layer. Copies of a dense model know nothing of each other."""
    return told.tensor_parallel > 1 or (told.data_parallel > 1 and arch.is_moe)


def _other(arch: Architecture, rules: VllmVersion, told: Settings) -> Band:
    if _communicates(arch, told):
        return rules.other_tensor_parallel
    return vllm_versions.OTHER_PIPELINE_ONLY if told.pipeline_parallel > 1 else rules.other


def _unmeasured(card: Card, number: tuple[int, int]) -> int:
    """Bytes by which a budget may be off on a version or a card of which there is no complete log."""
    measured = (0, 17) <= number < (0, 21) and "h100" in card.name.lower()
    return 0 if measured else card.memory_bytes // 40


def _outside(rules: VllmVersion, at: Stage) -> tuple[Term, ...]:
    arch, told = at.arch, at.told
    many = told.pipeline_parallel > 1 or _communicates(arch, told)
    context = vllm_versions.CONTEXT_MANY if many else vllm_versions.CONTEXT_ONE
    terms = [Term("context", context, "CUDA context and NCCL, taken before the first measurement")]
    if not rules.graphs_budgeted and not told.eager:
        terms.append(Term("graphs", _graphs(at), "CUDA graphs, captured after the pool is allocated"))
    if at.is_last:
        warm = 4 * (told.max_sequences or 1) * arch.vocab_size
        terms.append(Term("sampler warm-up", exact(warm), "one FP32 buffer of logits that finds no hole"))
    unpacked = activation.unpacked_expert_layer_bytes(arch, tensor_parallel=told.tensor_parallel)
    if unpacked:
        terms.append(Term("unpacked experts", exact(unpacked), "one layer of MXFP4 experts in 16 bits"))
    return tuple(terms)
