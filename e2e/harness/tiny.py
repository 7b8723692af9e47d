"""The tiny random model of most tests, and a class whose memory gives a pool of just the size that a test wants."""

from dataclasses import dataclass
from typing import Any

from harness import objects
from harness.cluster import WEIGHTS, Cluster, Object
from harness.serving import wait_answers
from kvbudget.api import parse_gpu_class, parse_service
from kvbudget.checks import evaluate
from support.tinymodel import TinyModel, make_tiny_model

NAME = "tiny"
READY_S = 240
MAX_MODEL_LEN = 2048
POOL_TOKENS = 8192
PAGE_TOKENS = 16
FOLDER = "tiny"


@dataclass(frozen=True, slots=True)
class Tiny:
    """``shape`` is spec.model.shape of the model that lies below ``WEIGHTS/FOLDER``."""

    shape: Object

    @classmethod
    def prepare(cls) -> "Tiny":
        """Writes the model to where the GPU node sees it."""
        model = TinyModel()
        for file in make_tiny_model(WEIGHTS / FOLDER, model).iterdir():
            file.chmod(0o644)  # pods read it as another user
        return cls(model.shape.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True))

    def spec(self, **changes: Any) -> dict[str, Any]:
        """Spec of an LLMService that serves it; ``changes`` replace whole fields."""
        return {
            "model": {
                "name": "tiny",
                "source": {"pvc": {"claimName": objects.CLAIM, "path": f"/{FOLDER}"}},
                "shape": self.shape,
                "weightPrecision": "FP32",
            },
            "gpu": {"class": objects.TINY_CLASS},
            "maxModelLen": MAX_MODEL_LEN,
            "kvCache": {"precision": "BF16", "pageTokens": PAGE_TOKENS, "prefixCache": {"mode": "Shared"}},
            "drain": {"timeoutSeconds": 60},
            "engine": {"maxSequences": 64, "maxBatchedTokens": 512},
            "podTemplate": {
                "resources": {"requests": {"cpu": "50m"}},
                # So small a model is slower on two threads than on one, and several pods share two CPUs here.
                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            },
            **changes,
        }

    def service(self, name: str, namespace: str, **changes: Any) -> Object:
        return objects.service(name, namespace, **self.spec(**changes))

    def gpu_class(self, name: str = objects.TINY_CLASS, tokens: int = POOL_TOKENS) -> Object:
        """A class that gives its services a pool of exactly ``tokens``: the pages, and what all else takes."""
        gibibyte = 1 << 30
        roomy = parse_gpu_class(objects.gpu_class(name, str(gibibyte)))
        verdict = evaluate(parse_service(self.service("sizing", "sizing")), roomy)
        if verdict.plan is None:
            raise ValueError(f"the tiny model does not fit into 1 GiB: {'; '.join(map(str, verdict.errors))}")
        budget = verdict.plan.budget
        pages = tokens // PAGE_TOKENS + budget.reserved_pages
        usable = budget.usable_bytes - budget.kv_bytes + pages * budget.page_bytes
        return objects.gpu_class(name, str(-(-usable * gibibyte // budget.usable_bytes)))


def start_tiny(cluster: Cluster, namespace: str, tiny: Tiny, **changes: Any) -> str:
    """Applies the LLMService ``NAME``, waits until it is Ready, and returns a URL on which it answers."""
    cluster.apply(tiny.service(NAME, namespace, **changes))
    cluster.wait_condition(NAME, namespace, "Ready", "True", READY_S)
    url = cluster.open_service(NAME, namespace)
    wait_answers(url)
    return url
