"""A worker whose model is a script: the real server, gate, scheduler and pool around a runner
that says what it is told.

``python -m support.scripted PLAN PORT_FILE`` serves one; its options are in :func:`main`. It starts without torch, and
its speed and its failures are what a test needs.
"""

import argparse
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from kvbudget import contract
from kvbudget.plan import Plan
from kvbudget_worker.batch import Sampled, StepBatch
from kvbudget_worker.http.connection import Patience
from kvbudget_worker.server import Loaded, bind, serve
from kvbudget_worker.tokenizer import Tokenizer

EOS = 256
IM_START = 257
VOCABULARY = 258
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def byte_tokenizer() -> Tokenizer:
    """One token per byte: id = byte; 256 ends a message, 257 begins one."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    vocabulary = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    fast = FastTokenizer(models.BPE(vocab=vocabulary, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<|im_end|>", "<|im_start|>"])
    return Tokenizer(fast, {"eos_token": "<|im_end|>"}, CHATML, "the test's tokenizer")


class ScriptedRunner:
    """Output token ``k`` of every sequence is ``script[k]``, round and round. ``fail_at``: the step, from 0, that
    raises. While ``hold`` is cleared, a step waits before it computes. Checks what a real runner would crash on."""

    def __init__(
        self, script: Sequence[int] | str, *, pages: int, step_ms: float = 0, fail_at: int | None = None
    ) -> None:
        self.script = list(script.encode()) if isinstance(script, str) else list(script)
        self.hold = threading.Event()
        self.hold.set()
        self.steps = 0
        self.tokens = 0
        self.in_step = threading.Event()
        self.fail_at = fail_at
        self._pages = pages
        self._step_seconds = step_ms / 1000

    def step(self, batch: StepBatch) -> list[Sampled]:
        self.in_step.set()
        self.hold.wait()
        time.sleep(self._step_seconds)
        if self.steps == self.fail_at:
            raise RuntimeError("the device is gone")
        self.steps += 1
        self.tokens += batch.tokens
        assert all(0 <= page <= self._pages for chunk in batch.chunks for page in chunk.pages)
        self.in_step.clear()
        return [self._sample(chunk) for chunk in batch.chunks if chunk.sample]

    def _sample(self, chunk: Any) -> Sampled:
        token = self.script[len(chunk.output_ids) % len(self.script)]
        if token in chunk.banned_ids:
            token = ord("~")
        alternatives = chunk.params.logprobs
        if alternatives is None:
            return Sampled(chunk.seq_id, token)
        top = tuple((ord(ALPHABET[i]), -1.0 - i) for i in range(alternatives))
        return Sampled(chunk.seq_id, token, -0.5, top)


def make_plan(*, pages: int = 64, page_tokens: int = 16, max_model_len: int = 512, **changes: Any) -> Plan:
    """A Plan of the byte tokenizer's model. ``changes``: limits by their names, ``drain_timeout_seconds``,
    ``prefix_cache_mode``, ``max_sequences``, ``weights_path``."""
    page_bytes = 2 * 2 * page_tokens * 2 * 4 * 4
    kv_bytes = (pages + 1) * page_bytes
    limits = {
        "max_model_len": max_model_len,
        "max_input_tokens": max_model_len - 1,
        "max_output_tokens": max_model_len - 1,
        "default_output_tokens": 64,
        "tokens_in_flight": pages * page_tokens,
        "queue_tokens": 0,
        "queue_max_wait_seconds": 30,
        "overload_status": 429,
    }
    limits |= {name: changes.pop(name) for name in list(changes) if name in limits}
    return Plan.model_validate(
        {
            "service_name": "scripted",
            "namespace": "default",
            "model": {
                "name": "test/scripted",
                "weights_path": changes.pop("weights_path", "/models/scripted"),
                "weight_precision": "BF16",
                "shape": {
                    "layers": 2,
                    "hidden_size": 16,
                    "intermediate_size": 32,
                    "attention_heads": 4,
                    "kv_heads": 2,
                    "head_dim": 4,
                    "vocab_size": VOCABULARY,
                    "max_position_embeddings": max_model_len,
                },
            },
            "gpu": {
                "class_name": "cpu",
                "resource_name": changes.pop("resource_name", "cpu"),
                "tensor_parallel": 1,
                "pipeline_parallel": 1,
                "count": 1,
            },
            "budget": {
                "gpu_memory_bytes": kv_bytes,
                "usable_bytes": kv_bytes,
                "weight_bytes": 0,
                "activation_bytes": 0,
                "graph_bytes": 0,
                "runtime_bytes": 0,
                "kv_bytes": kv_bytes,
                "remainder_bytes": 0,
                "page_bytes": page_bytes,
                "pages": pages,
                "reserved_pages": 1,
                "tokens": pages * page_tokens,
                "kv_bytes_per_token": page_bytes // page_tokens,
                "sequences_at_max_len": pages * page_tokens // max_model_len,
                "precision": "BF16",
            },
            "kv": {
                "precision": "BF16",
                "page_tokens": page_tokens,
                "pages": pages,
                "reserved_pages": 1,
                "page_bytes": page_bytes,
                "prefix_cache_mode": changes.pop("prefix_cache_mode", "Shared"),
            },
            "limits": limits,
            "engine": {
                "type": "Bundled",
                "max_batched_tokens": 256,
                "max_sequences": changes.pop("max_sequences", 64),
            },
            "drain_timeout_seconds": changes.pop("drain_timeout_seconds", 30),
            **changes,
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("port_file", type=Path)
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--load-ms", type=float, default=0)
    parser.add_argument("--patience-s", type=float, default=60)
    parser.add_argument("--idle", type=int, default=1024)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    plan = Plan.model_validate_json(options.plan.read_text())

    def load() -> Loaded:
        time.sleep(options.load_ms / 1000)
        runner = ScriptedRunner(ALPHABET, pages=plan.kv.pages, step_ms=options.step_ms, fail_at=options.fail_at)
        return Loaded(runner, byte_tokenizer(), (EOS,), measured(plan))

    sock = bind("127.0.0.1", 0)
    sock.listen()
    options.port_file.write_text(str(sock.getsockname()[1]))
    seconds = options.patience_s
    return serve(plan, sock, load, Patience(seconds, seconds, seconds, options.idle))


def measured(plan: Plan) -> dict[contract.Metric, int]:
    """Facts as a real runner reports them."""
    return {
        contract.MEASURED_WEIGHT_BYTES: 1000,
        contract.MEASURED_PAGE_BYTES: plan.kv.page_bytes,
        contract.MEASURED_PAGES: plan.kv.pages,
        contract.MEASURED_FREE_BYTES: 1 << 30,
    }


if __name__ == "__main__":
    raise SystemExit(main())
