"""Answers as JSON-able data, camelCase. The schema is docs/cli.schema.json; ``schema`` names it and its version."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvbudget.engines import Band
from kvbudget.engines.result import StageBudget, Term
from kvbudget.gpu import CatalogueEntry
from kvbudget.gpucatalogue import ROWS
from kvbudget.layers import Architecture
from kvbudget.planner.gains import Remedy, cause
from kvbudget.planner.grid import Cell
from kvbudget.planner.layerview import LayerRow, sequence_bytes
from kvbudget.planner.question import Answer
from kvbudget.planner.traffic import Size, Traffic
from kvbudget.weights import count, stored_bytes, total_parameters

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Explained:
    """A model, its rows in one KV precision on one of so many ranks, and the lengths to tell of."""

    name: str
    shape: Architecture
    kv_format: str
    tensor_parallel: int
    rows: tuple[LayerRow, ...]
    lengths: tuple[int, ...]


def plan_json(answer: Answer, remedies: Sequence[Remedy]) -> Json:
    """Everything of one plan: every term of every stage with low, expected, high and its source."""
    plan, found = answer.budget, cause(answer)
    return {
        "schema": "kvbudget/plan/v1",
        "model": model_json(answer.question.model, answer.question.shape),
        "gpu": _gpu(answer),
        "engine": {"name": plan.engine, "version": plan.version},
        "settings": _settings(answer),
        "wanted": {
            "requests": answer.question.requests,
            "tokensEach": plan.max_model_len,
            "pagesEach": answer.pages_each,
        },
        "verdict": answer.verdict,
        "fits": answer.verdict == "fits",
        "reason": answer.reason,
        "cause": None if found is None else {"name": found.name, "text": found.text},
        "capacity": capacity_json(answer),
        "stages": [_stage(stage, worst=stage is plan.worst) for stage in plan.stages],
        "remedies": [_remedy(remedy) for remedy in remedies],
        "notes": list(answer.notes),
    }


def capacity_json(answer: Answer) -> Json:
    """What the pool of one copy holds: ``pages`` can be granted, ``tokens`` as the engine's log counts them. The
    concurrency is that of the replica."""
    plan = answer.budget
    low, expected, high = answer.concurrency()
    return {
        "pages": _band(plan.grantable_pages),
        "tokens": _band(plan.kv_tokens),
        "concurrency": {"low": low, "expected": expected, "high": high},
        "longestRequestTokens": plan.longest_len(),
        "bytesPerTokenPerGPU": round(plan.kv_bytes_per_token, 3),
    }


def what_if_json(model: str, cells: Sequence[Cell]) -> Json:
    """All cells in their order."""
    return {"schema": "kvbudget/what-if/v1", "model": model, "cells": [_cell(cell) for cell in cells]}


def size_json(answer: Answer, traffic: Traffic, size: Size, target_percent: int) -> Json:
    """Replicas, and the formula line by line."""
    return {
        "schema": "kvbudget/size/v1",
        "model": answer.question.model,
        "gpu": _gpu(answer),
        "engine": {"name": answer.budget.engine, "version": answer.budget.version},
        "traffic": {
            "requestsPerSecond": float(traffic.requests_per_second),
            "inputTokens": traffic.input_tokens,
            "outputTokens": traffic.output_tokens,
            "secondsPerOutputToken": float(traffic.seconds_per_output_token),
            "secondsToFirstToken": float(traffic.first_token_seconds),
        },
        "targetPercent": target_percent,
        "requestsAtOnce": size.requests,
        "requestsPerReplica": size.requests_per_replica,
        "pagesPerRequest": size.pages_each,
        "boundBy": size.bound,
        "replicas": size.replicas,
        "gpus": size.replicas * answer.gpus,
        "formula": list(size.formula),
    }


def model_json(name: str, shape: Architecture) -> Json:
    """One model in a row."""
    return {
        "name": name,
        "kind": shape.kind,
        "layers": shape.layers,
        "parameters": total_parameters(shape),
        "weightFormat": shape.weights.name,
        "weightBytes": shape.weight_bytes or stored_bytes(shape, count(shape)),
        "maxPositionEmbeddings": shape.max_position_embeddings,
    }


def explain_json(seen: Explained) -> Json:
    """A model group by group, and the KV of one sequence of some lengths, per GPU."""
    return {
        "schema": "kvbudget/explain/v1",
        "model": model_json(seen.name, seen.shape),
        "kvPrecision": seen.kv_format,
        "tensorParallel": seen.tensor_parallel,
        "groups": [
            {
                "kind": row.kind,
                "layers": row.layers,
                "heads": row.heads,
                "bytesPerToken": row.token_bytes,
                "boundTokens": row.bound_tokens,
                "tokensPerEntry": row.ratio or None,
                "bytesPerEntry": row.entry_bytes,
                "stateBytes": row.state_bytes,
            }
            for row in seen.rows
        ],
        "sequences": [{"tokens": n, "bytes": sum(sequence_bytes(r, n) for r in seen.rows)} for n in seen.lengths],
        "assumptions": list(seen.shape.assumptions),
    }


def gpu_json(name: str, entry: CatalogueEntry) -> Json:
    """One GPU type of the catalogue."""
    row = ROWS.get(name)
    return {
        "name": name,
        "memoryBytes": entry.memory_bytes,
        "memoryHighBytes": entry.memory_high_bytes,
        "measured": entry.measured,
        "architecture": entry.architecture,
        "bandwidthBytesPerSecond": entry.bandwidth_bytes,
        "resourceName": entry.resource_name,
        "weightPrecisions": list(entry.weight_precisions),
        "kvPrecisions": list(entry.kv_precisions),
        "aliases": [] if row is None else list(row.aliases),
        "migProfiles": {} if row is None else dict(row.mig),
    }


def _gpu(answer: Answer) -> Json:
    device = answer.question.device
    return {"class": device.name, "memoryBytes": device.card.memory_bytes, "count": answer.gpus}


def _settings(answer: Answer) -> Json:
    used = answer.told
    return {
        "tensorParallel": used.tensor_parallel,
        "pipelineParallel": used.pipeline_parallel,
        "dataParallel": used.data_parallel,
        "expertParallel": used.expert_parallel,
        "kvPrecision": answer.budget.kv_precision,
        "maxModelLen": answer.budget.max_model_len,
        "utilization": used.memory_fraction,
        "maxNumSeqs": used.max_sequences,
        "maxBatchedTokens": used.max_batched_tokens,
        "blockTokens": used.block_tokens,
    }


def _band(band: Band) -> Json:
    return {"low": band.low, "expected": band.expected, "high": band.high}


def _term(term: Term) -> Json:
    return {"name": term.name, "bytes": _band(term.bytes), "source": term.source}


def _stage(stage: StageBudget, *, worst: bool) -> Json:
    return {
        "stage": stage.stage,
        "decides": worst,
        "layers": stage.layers,
        "memoryBytes": stage.memory_bytes,
        "usableBytes": stage.usable_bytes,
        "terms": [_term(term) for term in stage.terms],
        "outside": [_term(term) for term in stage.outside],
        "kvBytes": _band(stage.kv),
        "pageBytes": stage.pool.page_bytes,
        "pages": _band(stage.pages),
        "reservedPages": stage.pool.reserved_pages,
        "remainderBytes": stage.remainder_bytes,
        "cacheGroups": [
            {
                "kind": group.kind,
                "layers": group.layers,
                "blockTokens": group.block_tokens,
                "boundTokens": group.bound_tokens,
                "statePages": group.state_pages,
            }
            for group in stage.pool.groups
        ],
    }


def _remedy(remedy: Remedy) -> Json:
    return {
        "text": remedy.text,
        "gain": remedy.gain,
        "fits": remedy.fits,
        "changes": [{"option": option, "value": value} for option, value in remedy.changes],
        "parts": [{"text": text, "gain": gain} for text, gain in remedy.parts],
        "gpus": remedy.answer.gpus,
        "concurrency": remedy.answer.concurrency()[0],
    }


def _cell(cell: Cell) -> Json:
    answer = cell.answer
    return {
        "gpu": _gpu(answer),
        "tensorParallel": answer.question.settings.tensor_parallel,
        "kvPrecision": answer.budget.kv_precision,
        "maxModelLen": answer.budget.max_model_len,
        "verdict": answer.verdict,
        "fits": answer.verdict == "fits",
        "reason": answer.reason,
        "capacity": capacity_json(answer),
        "pricePerHour": cell.price,
    }
