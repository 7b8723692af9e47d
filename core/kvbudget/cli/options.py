"""Options that several commands share, and what they make of a question."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click

from kvbudget.api import GPUClass, LLMService
from kvbudget.cli.inputs import Model, device_named
from kvbudget.engines import KVFormat, Settings
from kvbudget.errors import InputError, Problem
from kvbudget.gpu import lookup
from kvbudget.planner.question import Question
from kvbudget.planner.weightformats import FORMATS, stored_as

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic only since click 8.4

_F = TypeVar("_F", bound=Callable[..., Any])

_MOST: Final = 2**31 - 1
_MOST_GPUS: Final = 1024
_ENGINES: Final = ("bundled", "vllm", "sglang", "tensorrt-llm")
_VERSION: Final = re.compile(r"v?[0-9]{1,4}(\.[0-9]{1,6}){0,3}([.+-]?[0-9A-Za-z.+-]{1,20})?")
_KV_NAMES: Final[dict[str, KVFormat]] = {name.lower(): name for name in get_args(KVFormat)} | {
    "fp8": "FP8E4M3",
    "fp8_e4m3": "FP8E4M3",
    "bfloat16": "BF16",
    "float16": "FP16",
}
AUTO: Final = "auto"


class Counts(_ParamType):
    """Whole numbers above 0, separated by commas."""

    name = "N[,N…]"

    def __init__(self, most: int = _MOST) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        numbers = []
        for part in str(value).split(","):
            text = part.strip()
            if not (text.isascii() and text.isdigit() and len(text) < 12 and 1 <= int(text) <= self.most):
                self.fail(f"{text[:40]!r} is not a whole number from 1 to {self.most}", param, ctx)
            numbers.append(int(text))
        return tuple(dict.fromkeys(numbers))


class KVNames(_ParamType):
    """KV precisions separated by commas; ``auto`` (None) is the engine's own choice."""

    name = "P[,P…]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[KVFormat | None, ...]:
        if isinstance(value, tuple):
            return value
        found: list[KVFormat | None] = []
        for part in str(value).split(","):
            text = part.strip().lower()
            if text != AUTO and text not in _KV_NAMES:
                names = ", ".join((AUTO, *get_args(KVFormat)))
                self.fail(f"{part.strip()[:40]!r} is no KV precision; use one of {names}", param, ctx)
            found.append(None if text == AUTO else _KV_NAMES[text])
        return tuple(dict.fromkeys(found))


class Positive(_ParamType):
    """An exact decimal number above 0."""

    name = "NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        if isinstance(value, Fraction):
            return value
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", str(value)) or not Fraction(str(value)):
            self.fail(f"{str(value)[:40]!r} is not a number above 0, like 2.5", param, ctx)
        return Fraction(str(value))


class Share(Positive):
    """A number above 0 and at most 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        share = super().convert(value, param, ctx)
        if share > 1:
            self.fail(f"{value} is above 1; give a share of the memory, like 0.9", param, ctx)
        return share


def engine_options(command: _F) -> _F:
    """What decides one plan, on ``plan`` and ``size``."""
    for option in reversed(
        (
            click.option("--gpu", metavar="CLASS", help="GPU type, by any of its names: `kvbudget gpus` lists them."),
            click.option(
                "--engine",
                type=click.Choice(_ENGINES),
                help="Whose rules hold.  [default: vllm; bundled for an LLMService]",
            ),
            click.option("--engine-version", metavar="X.Y", help="Its version.  [default: the newest known]"),
            click.option("--tp", type=Counts(_MOST_GPUS), help="GPUs that share every layer (tensor parallel)."),
            click.option(
                "--pp", type=click.IntRange(1, _MOST_GPUS), metavar="N", help="Stages of layers (pipeline parallel)."
            ),
            click.option(
                "--dp", type=click.IntRange(1, _MOST_GPUS), metavar="N", help="Copies of all but the experts (vLLM)."
            ),
            click.option(
                "--expert-parallel", is_flag=True, help="Whole experts on each GPU, not a part of each (vLLM)."
            ),
            click.option(
                "--weight-precision",
                type=click.Choice(list(FORMATS), case_sensitive=False),
                metavar="P",
                help=f"As if the checkpoint were stored so: {', '.join(FORMATS)}.  [default: as it is]",
            ),
            click.option("--kv-precision", type=KVNames(), help="auto, BF16, FP16, FP8E4M3 (fp8), INT8, INT4, NVFP4."),
            click.option("--max-model-len", type=Counts(), help="Longest request in tokens.  [default: the model's]"),
            click.option(
                "--utilization",
                type=Share(),
                help="Share of the memory, as the engine's own option means it: gpu_memory_utilization, "
                "mem_fraction_static, free_gpu_memory_fraction.",
            ),
            click.option(
                "--max-num-seqs", type=click.IntRange(1, _MOST), metavar="N", help="Most requests in one step."
            ),
            click.option(
                "--max-batched-tokens", type=click.IntRange(1, _MOST), metavar="N", help="Most tokens in one step."
            ),
            click.option(
                "-f",
                "--file",
                "paths",
                multiple=True,
                metavar="FILE",
                help="YAML or JSON manifests; - is stdin. With MODEL: your own GPUClasses.",
            ),
        )
    ):
        command = option(command)
    return command


def question_of(
    model: Model,
    given: Mapping[str, Any],
    classes: Mapping[str, GPUClass],
    *,
    requests: int = 1,
    prompt: int | None = None,
) -> Question:
    """The question that the options ask, one value of each; ``prompt`` is the longest in tokens. An LLMService gives
    the defaults. Raises InputError."""
    service = model.service
    gpu = given["gpu"] or (None if service is None else service.spec.gpu.class_)
    if gpu is None:
        raise InputError("--gpu", "is missing; give a GPU type, like --gpu h100-80gb (`kvbudget gpus` lists them)")
    if "," in gpu:
        raise InputError("--gpu", "takes one value here; several need --what-if")
    told = Settings() if service is None else _service_settings(service)
    chosen = {
        "tensor_parallel": one("--tp", given["tp"]),
        "pipeline_parallel": given["pp"],
        "data_parallel": given["dp"],
        "expert_parallel": given["expert_parallel"] or None,
        "max_model_len": one("--max-model-len", given["max_model_len"]),
        "memory_fraction": None if given["utilization"] is None else float(given["utilization"]),
        "max_sequences": given["max_num_seqs"],
        "max_batched_tokens": given["max_batched_tokens"],
    }
    told = replace(told, **{key: value for key, value in chosen.items() if value is not None})
    if given["kv_precision"]:
        told = replace(told, kv_format=one("--kv-precision", given["kv_precision"]))
    stored = given["weight_precision"]
    if not given["gpu"] and gpu not in classes and isinstance(lookup(gpu), Problem):
        fix = "add its file with -f, as in: kvbudget plan -f FILE -f gpuclass.yaml"
        raise InputError("MODEL", f"the manifest's class {gpu} is in another file; {fix}")
    return Question(
        model=model.name,
        shape=model.shape if stored is None else stored_as(model.shape, stored),
        device=device_named(gpu, classes),
        engine=engine_of(model, given["engine"]),
        version=version_of(given),
        settings=told,
        requests=requests,
        input_tokens=prompt,
    )


def engine_of(model: Model, given: str | None) -> str:
    """The engine's name as ``engines`` has it."""
    return (given or ("vllm" if model.service is None else "bundled")).replace("-", "_")


def version_of(given: Mapping[str, Any]) -> str | None:
    """The version where it is given and can be one. Raises InputError."""
    version: str | None = given["engine_version"]
    if version is not None and given["engine"] == "bundled":
        raise InputError(
            "--engine-version", "is of no use for the bundled worker, which is this release's; leave it out"
        )
    if version is not None and not _VERSION.fullmatch(version):
        raise InputError("--engine-version", f"{version[:40]!r} is no version; write it like 0.19")
    return version


def one(option: str, values: tuple[Any, ...] | None) -> Any:
    """The only value of a list; None for none. Raises InputError for several."""
    if values is not None and len(values) > 1:
        raise InputError(option, "takes one value here; several need --what-if")
    return values[0] if values else None


def _service_settings(service: LLMService) -> Settings:
    spec = service.spec
    precision = spec.kv_cache.precision
    return Settings(
        tensor_parallel=spec.gpu.tensor_parallel,
        pipeline_parallel=spec.gpu.pipeline_parallel,
        max_model_len=spec.max_model_len,
        kv_format=None if precision == "Auto" else precision,
        memory_fraction=spec.kv_cache.memory_percent / 100,
        max_sequences=spec.engine.max_sequences,
        max_batched_tokens=spec.engine.max_batched_tokens,
        block_tokens=spec.kv_cache.page_tokens,
    )
