"""One model on one device: turns a scheduled step into sampled tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kvbudget.errors import InputError, UnsupportedError
from kvbudget.plan import Plan
from kvbudget.quantity import format_bytes
from kvbudget_kernels.storage import Layout
from kvbudget_worker.attention import AttentionBackend, PagedCache, check_precision, choose_backend
from kvbudget_worker.batch import Sampled, StepBatch
from kvbudget_worker.device import free_bytes, limit_threads, pick_device
from kvbudget_worker.model.config import ModelConfig, check_shape
from kvbudget_worker.model.decoder import Decoder
from kvbudget_worker.model.parameters import Parameters, load_parameters
from kvbudget_worker.sampling import Sampler
from kvbudget_worker.weights import open_checkpoint

ChooseBackend = Callable[[PagedCache, int, torch.dtype], AttentionBackend[Any]]
WEIGHT_DTYPES = {"BF16": torch.bfloat16, "FP16": torch.float16, "FP32": torch.float32}


class Runner:
    """See the module. ``step`` belongs to one thread; the facts are plain values."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        *,
        pages: int,
        page_tokens: int,
        precision: str,
        max_model_len: int,
        compute_dtype: torch.dtype,
        sampling_seed: int | None = None,
        choose: ChooseBackend = choose_backend,
    ) -> None:
        device = parameters.embedding.device
        check_precision(precision)
        layout = Layout.stored(precision, config.kv_heads, config.head_dim, page_tokens)
        self.cache = PagedCache(layout, layers=config.layers, pages=pages, device=device)
        self._attention: AttentionBackend[Any] = choose(self.cache, config.attention_heads, compute_dtype)
        self._decoder: Decoder[Any] = Decoder(config, parameters, self._attention, max_model_len, compute_dtype)
        self._sampler = Sampler(sampling_seed)
        self._device = device
        self.device = device.type
        self.weight_bytes = parameters.nbytes
        self.page_bytes = self.cache.page_bytes
        self.pages = self.cache.pages
        self.free_bytes = free_bytes(device)
        self.eos_ids = config.eos_ids
        self.vocab_size = config.vocab_size

    @classmethod
    def load(cls, plan: Plan, device: str | None, *, choose: ChooseBackend = choose_backend) -> "Runner":
        """Load what ``plan`` names onto ``device`` (the value of KVBUDGET_DEVICE; None: choose). ``choose`` makes the
        attention backend.

        Raises WeightsError, ShapeError, UnsupportedError or InputError, each with a path and the fix."""
        place = pick_device(plan.gpu.resource_name, device)
        if place.type == "cpu":
            limit_threads()
        check_precision(plan.kv.precision)
        dtype = _weight_dtype(plan.model.weight_precision)
        checkpoint = open_checkpoint(Path(plan.model.weights_path))
        check_shape(checkpoint.config, plan.model.shape, checkpoint.path)
        parameters = load_parameters(checkpoint, dtype, place)
        _check_pool_fits(plan, free_bytes(place))
        return cls(
            checkpoint.config,
            parameters,
            pages=plan.kv.pages,
            page_tokens=plan.kv.page_tokens,
            precision=plan.kv.precision,
            max_model_len=plan.limits.max_model_len,
            compute_dtype=torch.float32 if place.type == "cpu" else dtype,
            choose=choose,
        )

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> list[Sampled]:
        """Compute one step. Blocking. One result per chunk with ``sample``, in the batch's order."""
        self.cache.copy_pages(batch.copies)
        if not batch.chunks:
            return []
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for chunk in batch.chunks:
            tokens.extend(chunk.token_ids)
            positions.extend(range(chunk.start, chunk.start + len(chunk.token_ids)))
            if chunk.sample:
                rows.append(len(tokens) - 1)
        logits = self._decoder.forward(
            self._indices(tokens), self._indices(positions), self._indices(rows), self._attention.plan(batch.chunks)
        )
        return self._sampler.sample(logits, [c for c in batch.chunks if c.sample])

    def _indices(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _weight_dtype(precision: str) -> torch.dtype:
    try:
        return WEIGHT_DTYPES[precision]
    except KeyError:
        raise UnsupportedError(
            "spec.model.weightPrecision", f"{precision} is not served yet: use {', '.join(WEIGHT_DTYPES)}"
        ) from None


def _check_pool_fits(plan: Plan, free: int) -> None:
    """A host promises memory that it does not have and kills the process later, so the pool is compared before it is
    made. ``free``: bytes that are left beside the weights. Raises InputError."""
    pool = (plan.kv.pages + plan.kv.reserved_pages) * plan.kv.page_bytes
    if pool > free:
        raise InputError(
            "spec.kvCache.memoryPercent",
            f"a pool of {plan.kv.pages} pages needs {format_bytes(pool)}, but {format_bytes(free)} are free beside the "
            f"weights: lower it, or correct spec.memory of GPUClass {plan.gpu.class_name}",
        )
