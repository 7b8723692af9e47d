"""What a point says that the engine was told, as the engine's settings."""

import re
from collections.abc import Mapping
from dataclasses import replace

from kvbudget.engines import Card, Settings
from kvbudget.engines.result import gib
from kvbudget.engines.sglang import prefill_graph_sizes
from kvbudget.engines.vllm_versions import default_batch
from scoring.points import Point


def fraction_of(point: Point) -> float | None:
    """The engine's own share; None where the point does not state it."""
    keys: Mapping[str, str] = {
        "vllm": "gpu_memory_utilization",
        "sglang": "mem_fraction_static",
        "tensorrt_llm": "free_gpu_memory_fraction",
    }
    value = point.number(keys.get(point.engine, ""))
    return value if value is not None and 0 < value <= 1 else None


def logged_weights_gib(point: Point) -> float | None:
    """The weights of one GPU that the log prints; of SGLang also as what was free before them less what was after."""
    size = point.number("model_weights_gib")
    before = point.free_before_gib
    after = re.search(r"available_gpu_memory=([\d.]+)|weight end\.? *avail mem=([\d.]+)", point.log)
    if size is None and point.engine == "sglang" and before is not None and after:
        return before - float(after[1] or after[2])
    return size


def settings_of(point: Point, *, weights: bool = False) -> Settings:
    """The settings; with ``weights``, the weights that the log prints."""
    size = logged_weights_gib(point)
    by_rank = point.rank_numbers("weights_gib")
    logged: tuple[float, ...] = ()
    if weights:
        staged = by_rank if (point.whole("pp") or 1) == len(by_rank) else ()
        logged = staged or ((size,) if size is not None else ())
    return Settings(
        max_model_len=point.whole("max_model_len"),
        memory_fraction=fraction_of(point),
        tensor_parallel=point.tensor_parallel,
        mlp_ranks=point.whole("tp") if point.engine == "sglang" else None,
        pipeline_parallel=point.whole("pp") or 1,
        context_parallel=point.whole("dcp") or point.option(r"decode[_-]context[_-]parallel[_-]size[= ](\d+)") or 1,
        kv_format=point.kv_format,
        block_tokens=point.whole("block_size"),
        max_batched_tokens=point.option(
            r"max[_-]num[_-]batched[_-]tokens[= ]([\d,]+)",
            r"max[_-]num[_-]tokens[= ]([\d,]+)",
            r"chunked[_-]prefill[_-]size[= ]([\d,]+)",
        ),
        max_sequences=point.option(r"max[_-]num[_-]seqs[= ](\d+)", r"max[_-]running[_-]requests[= ](\d+)"),
        eager=re.search(r"enforce[_ -]eager(?![= ]*false)|disable-cuda-graph", point.told, re.IGNORECASE) is not None,
        prefix_caching=_prefix_caching(point.told.lower()),
        draft_tokens=_draft_tokens(point),
        hybrid_groups="disable-hybrid-kv-cache-manager" not in point.flags.replace("_", "-").lower(),
        weight_bytes=tuple(gib(v) for v in logged),
        stage_layers=_partition(point),
        prefill_graph_tokens=_prefill_graphs(point),
        state_slots=point.option(r"max[_-]mamba[_-]cache[_-]size[=: ]+(\d+)"),
    )


OFFLINE_BATCH: Mapping[int, int] = {2048: 8192, 8192: 16384}
"""vLLM's default of max_num_batched_tokens where a program runs the engine itself (class ``LLM``), by that of the
server. Few logs say which of the two ran."""


def batches(point: Point, told: Settings, card: Card) -> tuple[Settings, ...]:
    """The settings as they are; where vLLM's log leaves the batch unsaid, also with the default of class ``LLM``."""
    if point.engine != "vllm" or told.max_batched_tokens is not None:
        return (told,)
    offline = OFFLINE_BATCH.get(default_batch(card.memory_bytes, card.name)[0])
    return (told, replace(told, max_batched_tokens=offline)) if offline else (told,)


def _prefix_caching(flags: str) -> bool:
    if re.search(r"no[_ -](enable[_ -])?prefix[_ -]caching|prefix[_ -]caching[=: '\"]+(false|off)", flags):
        return False
    return bool(re.search(r"prefix[_ -]caching|mamba-cache-mode[= ]align", flags))


def draft_tokens_stated(point: Point) -> int | None:
    """Speculative tokens per step where the point gives their number."""
    return point.option(
        r"num[_-]speculative[_-]tokens\W{1,4}(\d+)",
        r"spec(?:ulative)?[_ -]tokens\W{1,4}(\d+)",
        r"\bMTP\W{0,4}n?\W?(\d+)",
        r"(\d+) (?:speculative|spec|draft) tokens",
    )


def _draft_tokens(point: Point) -> int:
    stated = draft_tokens_stated(point)
    if stated is not None:
        return stated
    return 1 if re.search(r"(?<!no )\b(MTP|EAGLE)\b", point.told) else 0


def _partition(point: Point) -> tuple[int, ...]:
    found = re.search(r"VLLM_PP_LAYER_PARTITION[= ]([\d,]+)", point.flags)
    return tuple(int(part) for part in found[1].split(",") if part) if found else ()


def _prefill_graphs(point: Point) -> tuple[int, ...]:
    found = re.search(r"prefill (?:cuda )?graphs?\D*\d+ buckets up to ([\d,]+)", point.flags, re.IGNORECASE)
    return prefill_graph_sizes(int(found[1].replace(",", ""))) if found else ()


def unnamed_card(point: Point) -> Card:
    """For checks that depend on no memory: a card by its name alone."""
    return Card(name=point.text("gpu") or "unnamed", memory_bytes=gib(80))
