"""Shapes of the models that points name: from a file of facts (keys of config.json), else from the product's table."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvbudget.engines.result import gib
from kvbudget.errors import InputError
from kvbudget.layers import Architecture, LayerGroup, StateCache, WeightFormat, uniform
from kvbudget.shapes import table
from kvbudget.shapes.config import from_config
from scoring.points import Point, lines

_REMARKS: Final = ("model", "source", "note", "checkpoint_gib", "layer_type_counts")
_WORDS: Final = (
    r"instruct|it|chat|hf|base|fp8|nvfp4|bf16|fp16|awq|gptq|int4|int8|4bit|8bit|qat|w4a16|w8a8|"
    r"quantized|dynamic|autoround|resharded"
)
_FORMATS: Final[tuple[tuple[str, WeightFormat], ...]] = (
    (r"mxfp4", WeightFormat(name="MXFP4", mixer_millibits=16000, mlp_millibits=16000, expert_millibits=4250)),
    (r"nvfp4|fp4", uniform("NVFP4", 4500)),
    (r"int8|w8a8", uniform("INT8", 8000)),
    (r"int4|awq|gptq|w4a16", uniform("INT4", 4156)),
    (r"fp8", uniform("FP8", 8000)),
    (r"fp32|float32", uniform("FP32", 32000, table_millibits=32000)),
)


class Models:
    """Facts by name. Lines that cannot be read are left out."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._facts: dict[str, Mapping[str, object]] = {}
        for entry, wrong in (line for path in paths for line in lines(path)):
            name = entry.get("model")
            if not wrong and isinstance(name, str):
                self._facts[name] = entry
        self._known: dict[str, Architecture | str] = {}

    def of(self, point: Point) -> Architecture | str:
        """The shape of the point's model with the weights and types that the point states, or why there is none."""
        names = _names(point)
        if not names:
            return "the model is not named"
        found: Architecture | str = f"geometry of {names[0]} is not in the models file"
        for name in names:
            known = self._resolve(name)
            if known is not None:
                found = self._architecture(known)
                break
        return found if isinstance(found, str) else stated(found, point)

    def facts_of(self, point: Point) -> Mapping[str, object]:
        """The facts behind :meth:`of`; empty where there are none."""
        for name in _names(point):
            known = self._resolve(name)
            if known is not None:
                return self._facts.get(known, {})
        return {}

    def _resolve(self, name: str) -> str | None:
        """A name as it is written, then by its last part, then without words for tuning and quantisation."""
        if name in self._facts or table.facts(name) is not None:
            return name
        everything = [*self._facts, *table.known_names()]
        for plain in (_last, _stem):
            wanted = plain(name)
            same = [known for known in everything if plain(known) == wanted]
            if wanted and same:
                return same[0]
        return None

    def _architecture(self, name: str) -> Architecture | str:
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> Architecture | str:
        entry = self._facts.get(name, {})
        config = {k: v for k, v in entry.items() if k not in _REMARKS and not k.endswith("_source")}
        config = {k: v for k, v in config.items() if not k.startswith("params_total")}
        try:
            shape = from_config(config, name, name=name)
        except InputError as error:
            return f"geometry: {error}"
        size = entry.get("checkpoint_gib")
        given = isinstance(size, int | float) and not isinstance(size, bool) and size > 0
        return replace(shape, weight_bytes=gib(float(size))) if given and isinstance(size, int | float) else shape


def _names(point: Point) -> list[str]:
    """What the point calls its model, and its first word; "class" says that it is only one like it."""
    model = point.text("model")
    first = model.partition(" ")[0]
    like = "class" in model.split() or "hybrid" in model.split()
    return [n for n in (point.text("facts_model"), model, "" if like else first) if n]


def _last(name: str) -> str:
    return re.sub(r"\s*\(.*?\)", "", name).rpartition("/")[2].lower().replace(" ", "-")


def _stem(name: str) -> str:
    words = _last(name)
    while (shorter := re.sub(rf"[-_.]({_WORDS})$", "", words)) != words:
        words = shorter
    return words


def stated(shape: Architecture, point: Point) -> Architecture:
    """The shape with the weight format, the dtype and the state dtype that the point states. A checkpoint's bytes are
    kept only where they are of that format."""
    label = point.text("weight_dtype").lower()
    head = label.partition("(")[0]
    form = next((form for pattern, form in _FORMATS if re.search(pattern, head)), None)
    found = shape
    if form is not None and not _same_format(form, shape.weights):
        found = replace(found, weights=form, weight_bytes=None)
    elif form is None and re.search(r"bf16|fp16|float16", head) and shape.weights.name != "BF16":
        found = replace(found, weights=uniform("BF16", 16000), weight_bytes=None)
    if form is not None and form.name == "FP32":
        found = replace(found, dtype="FP32")
    elif "fp16" in label and found.dtype != "FP32":
        found = replace(found, dtype="FP16")
    state = re.search(r"mamba-ssm-cache-dtype[ =](\w+)", point.flags)
    if state and state[1] in ("float16", "bfloat16"):
        found = replace(found, groups=tuple(_with_state(group) for group in found.groups))
    return found


def _same_format(wanted: WeightFormat, stored: WeightFormat) -> bool:
    family = stored.name.upper().replace("MIXED", "NVFP4")
    names = {"INT4": ("INT4", "AWQ", "GPTQ")}.get(wanted.name, (wanted.name,))
    return any(name in family for name in names)


def _with_state(group: LayerGroup) -> LayerGroup:
    cache = group.cache
    return replace(group, cache=replace(cache, state_dtype="FP16")) if isinstance(cache, StateCache) else group
