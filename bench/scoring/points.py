"""One measured point, read defensively: a value of the wrong kind counts as missing, and nothing raises."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvbudget.engines.settings import KVFormat

_KV_NAMES: Final[tuple[tuple[str, KVFormat], ...]] = (
    (r"nvfp4|\bfp4|float4_e2m1", "NVFP4"),
    (r"\bfp8|e4m3|e5m2|float8", "FP8E4M3"),
    (r"\bint8", "INT8"),
    (r"\bint4", "INT4"),
    (r"bf16|bfloat16", "BF16"),
    (r"\bfp16|\bfloat16|\bhalf\b", "FP16"),
    (r"\bfp32|\bfloat32|\bfloat\b", "FP32"),
)


ASSUMED_VERSION: Final = (0, 19)
"""Of vLLM where a point states none: that of most points."""


_COUNTS: Final = ("tp", "pp", "dp", "dcp", "block_size")

MOST: Final = 10**13
"""No count or length in a log is larger."""


@dataclass(frozen=True)
class Point:
    """A line of a file of points; ``raw`` has every key."""

    raw: Mapping[str, object]

    def text(self, key: str) -> str:
        value = self.raw.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> float | None:
        return _number(self.raw.get(key))

    def whole(self, key: str) -> int | None:
        value = self.number(key)
        return None if value is None or not 1 <= value <= MOST or value != int(value) else int(value)

    def flag(self, key: str) -> bool | None:
        value = self.raw.get(key)
        return value if isinstance(value, bool) else None

    @property
    def check(self) -> Mapping[str, object]:
        value = self.raw.get("check")
        return value if isinstance(value, Mapping) else {}

    @property
    def ident(self) -> str:
        return self.text("id") or "(no id)"

    @property
    def engine(self) -> str:
        """The engine whose rules apply; empty for one that is not covered."""
        name = self.text("engine").lower()
        if name.startswith("vllm"):
            return "vllm"
        if name.startswith("sglang"):
            return "sglang"
        return "tensorrt_llm" if name.startswith(("tensorrt", "trt")) else ""

    @property
    def version(self) -> tuple[int, int] | None:
        """Major and minor version where one is stated; dates are none."""
        found = re.match(r"\s*v?(\d+)\.(\d+)", self.text("engine_version"))
        return (int(found[1]), int(found[2])) if found else None

    @property
    def tensor_parallel(self) -> int:
        """Ranks that share the attention: with data-parallel attention each has its own (SGLang's dp)."""
        ranks, copies = self.whole("tp") or 1, self.whole("dp") or 1
        return max(1, ranks // copies) if self.engine == "sglang" else ranks

    @property
    def kv_format(self) -> KVFormat | None:
        """None where the point does not say."""
        label = self.text("kv_dtype").lower()
        return next((name for pattern, name in _KV_NAMES if re.search(pattern, label)), None)

    @property
    def unread(self) -> str:
        """Why nothing can be computed from the point: a value that is given and means nothing here; empty where none
        is. Left alone it would count as not given, and the engine's default would be scored."""
        for key in _COUNTS:
            if self.raw.get(key) is not None and self.whole(key) is None:
                return f"{key} {self.raw[key]!r} is no whole number of 1 or more"
        label = self.raw.get("kv_dtype")
        if label is not None and label not in ("", "auto") and self.kv_format is None:
            return f"kv_dtype {label!r} is not a format whose bytes are known"
        return ""

    @property
    def flags(self) -> str:
        return self.text("flags")

    @property
    def log(self) -> str:
        """All that the point quotes or remarks."""
        return " ".join(self.text(key) for key in ("flags", "quote", "note", "adds_up_why"))

    @property
    def told(self) -> str:
        """Flags, and the log's own echo of the command."""
        return f"{self.flags} {self.text('quote')}"

    def option(self, *patterns: str) -> int | None:
        """The first whole number that a flag gives, or the quoted command; patterns have one group."""
        for text in (self.flags, self.text("quote")):
            for pattern in patterns:
                found = re.search(pattern, text, re.IGNORECASE)
                if found:
                    return int(found[1].replace(",", ""))
        return None

    @property
    def ranks(self) -> tuple[Mapping[str, object], ...]:
        value = self.raw.get("ranks")
        return tuple(r for r in value if isinstance(r, Mapping)) if isinstance(value, list) else ()

    def rank_numbers(self, key: str) -> tuple[float, ...]:
        """One figure of every rank; empty where any lacks it."""
        found = [_number(rank.get(key)) for rank in self.ranks]
        return tuple(v for v in found if v is not None) if all(v is not None for v in found) else ()

    @property
    def kv_gib(self) -> float | None:
        """KV memory as the log prints it, in GiB: of SGLang's two pools (windowed layers, full layers) both together;
        of vLLM also as its share less every term that it prints."""
        pools = re.findall(r"\bK ([\d.]+) GB, V ([\d.]+) GB", self.text("quote"))
        if self.engine == "sglang" and len(pools) > 1:
            return sum(float(k) + float(v) for k, v in pools)
        found = self.number("available_kv_gib")
        return self._left_of_share() if found is None and self.engine == "vllm" else found

    def _left_of_share(self) -> float | None:
        total, share = self.number("gpu_total_gib"), self.number("gpu_memory_utilization")
        terms = [self.number(key) for key in ("model_weights_gib", "activation_gib", "non_torch_gib")]
        known = [term for term in terms if term is not None]
        if total is None or share is None or len(known) < len(terms):
            return None
        return total * share - sum(known)

    @property
    def free_before_gib(self) -> float | None:
        """The card's memory where the log states it. In SGLang's logs that is what was free before the weights came:
        stated, or what was free after them and their own size."""
        stated = self.number("gpu_total_gib")
        if stated is not None or self.engine != "sglang":
            return stated
        found = re.search(r"avail mem=([\d.]+) GB, mem usage=([\d.]+) GB", self.text("quote"))
        return float(found[1]) + float(found[2]) if found else None

    @property
    def is_minimum_of_ranks(self) -> bool:
        """The log prints one rank's GiB beside the minimum rank's tokens."""
        return bool(re.search(r"min(imum)?( over)? (ranks|rank|of (the )?ranks)", self.log, re.IGNORECASE))


def _number(value: object) -> float | None:
    """A number, also one written as a string ("79.2", "184,752")."""
    if isinstance(value, str) and re.fullmatch(r"-?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?", value.strip(), re.ASCII):
        value = float(value.replace(",", ""))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value == value and abs(value) < 1e18 else None


def lines(path: Path) -> Iterator[tuple[Mapping[str, object], str]]:
    """Every line as an object, or as an empty one with the reason why it cannot be read."""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield {"id": f"line {number}"}, f"no JSON: {error}"
            continue
        if isinstance(value, dict):
            yield value, ""
        else:
            yield {"id": f"line {number}"}, "no object"
