"""How honest is Retry-After: clients who obey it, against the real gate, scheduler and ledger.

    python bench/retry_after.py [--requests 200] [--seeds 3] [--json]

Requests of mixed length arrive at a multiple of what the pool can carry; who is refused comes back exactly when told,
as often as needed. Only the clock and the model's speed are simulated: a step takes 20 ms, and 1 ms more for each
sequence and each 16 prompt tokens in it. Printed, as medians over the seeds:

- ``first return``: the share of the refused whose first return is admitted;
- ``refusals``: per request that was ever refused;
- ``early``: by how much of the true wait (from the first refusal to the admission) the first answer was below it;
- ``pool``: share of the pool's tokens that was reserved while requests were arriving: a forecast which is too careful
  leaves it empty.
"""

import argparse
import heapq
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kvbudget.demand import DemandWindow
from kvbudget.ledger import TokenLedger
from kvbudget.plan import PlanLimits
from kvbudget_worker.batch import Chunk, Sampled, StepBatch
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.gate import Ask, Gate
from kvbudget_worker.refusals import Refused
from kvbudget_worker.requests import Request
from kvbudget_worker.scheduler import Scheduler

PAGE_TOKENS = 64
PAGES = 316
LOADS = (1.2, 1.5, 2.0, 4.0)
"""Arriving tokens over what the pool carries."""
END_TOKEN, PLAIN_TOKEN, FIRST_CLIENT_TOKEN = 1, 2, 3
MEAN_STEP_MS = 45
"""For the arrival rate only."""


@dataclass(frozen=True)
class Outcome:
    """One row; shares are 0 … 1."""

    load: float
    mix: str
    refused: float
    first_return: float
    refusals: float
    early: float
    pool: float


@dataclass
class Client:
    """One request and what its client lived through."""

    number: int
    prompt_tokens: int
    max_output_tokens: int
    output_tokens: int
    told_ms: list[int]
    refused_ms: list[int]
    admitted_ms: int | None = None


def clients(mix: str, number: int, draw: random.Random) -> list[Client]:
    """``equal``: 500 + 500 tokens, all used. ``mixed``: short and long ones, which end when they like. ``long``: after
    a first third that ends early, requests for much that use all of it."""
    made = []
    for index in range(number):
        if mix == "equal":
            prompt, most, used = 500, 500, 500
        elif mix == "long":
            prompt, most = 64, 1024
            used = draw.randint(20, 200) if index < number // 3 else most
        else:
            prompt = draw.choice((64, 256, 512, 2048))
            most = draw.choice((64, 256, 1024))
            used = draw.randint(1, most)
        made.append(Client(index, prompt, most, used, [], []))
    return made


def step_ms(batch: StepBatch) -> int:
    return 20 + len(batch.chunks) + (batch.tokens - len(batch.chunks)) // 16


def simulate(load: float, mix: str, requests: int, seed: int) -> Outcome:
    """Runs all requests to their end."""
    draw = random.Random(seed)
    everyone = clients(mix, requests, draw)
    pool = BlockPool(PAGES, PAGE_TOKENS, prefix_cache=False)
    ledger = TokenLedger(PAGES, PAGE_TOKENS)
    scheduler = Scheduler(pool, ledger, max_batched_tokens=512, max_sequences=256, max_model_len=8192)
    limits = PlanLimits(
        max_model_len=8192,
        max_input_tokens=8191,
        max_output_tokens=8191,
        default_output_tokens=256,
        tokens_in_flight=PAGES * PAGE_TOKENS,
        queue_tokens=0,
        queue_max_wait_seconds=30,
        overload_status=429,
    )
    gate = Gate(scheduler, ledger, limits, DemandWindow())

    # A request holds its tokens for about as many steps as it has output tokens.
    token_ms = statistics.mean(
        (c.prompt_tokens + c.max_output_tokens) * c.output_tokens * MEAN_STEP_MS for c in everyone
    )
    gap_ms = token_ms / (PAGES * PAGE_TOKENS) / load
    calls: list[tuple[int, int, int]] = []
    at = 0.0
    for client in everyone:
        at += draw.expovariate(1 / gap_ms)
        calls.append((int(at), client.number, client.number))
    arrivals_end_ms = int(at)
    heapq.heapify(calls)
    made = requests  # every attempt has an id of its own: most clients send none
    owners: dict[int, Client] = {}
    now_ms = reserved_ms = busy_ms = 0
    while calls or scheduler.has_work:
        while calls and calls[0][0] <= now_ms:
            _, _, number = heapq.heappop(calls)
            client = everyone[number]
            made += 1
            prompt = (FIRST_CLIENT_TOKEN + number,) * client.prompt_tokens
            request = Request(f"r{made}", prompt, client.max_output_tokens, eos_ids=(END_TOKEN,), arrived_ms=now_ms)
            try:
                gate.offer(Ask(f"c{made}", (request,), now_ms), now_ms)
                client.admitted_ms = now_ms
            except Refused as refused:
                wait_ms = int(dict(refused.refusal.headers)["retry-after-ms"])
                client.told_ms.append(wait_ms)
                client.refused_ms.append(now_ms)
                heapq.heappush(calls, (now_ms + wait_ms, made, number))
        batch = scheduler.schedule(now_ms)
        if batch is None:
            now_ms = calls[0][0]
            continue
        took_ms = step_ms(batch)
        if now_ms < arrivals_end_ms:
            reserved_ms += ledger.charged_pages * took_ms
            busy_ms += took_ms
        now_ms += took_ms
        owners |= {c.seq_id: everyone[c.token_ids[0] - FIRST_CLIENT_TOKEN] for c in batch.chunks if not c.start}
        scheduler.apply([sampled(c, owners[c.seq_id]) for c in batch.chunks if c.sample], now_ms)
    return outcome(load, mix, everyone, reserved_ms / (busy_ms * PAGES))


def sampled(chunk: Chunk, client: Client) -> Sampled:
    """A plain token until the client has as many as it will use, then the end token."""
    ends = len(chunk.output_ids) + 1 >= client.output_tokens
    return Sampled(chunk.seq_id, END_TOKEN if ends else PLAIN_TOKEN)


def outcome(load: float, mix: str, everyone: Sequence[Client], pool: float) -> Outcome:
    refused = [c for c in everyone if c.told_ms]
    waits = [(c.told_ms[0], (c.admitted_ms or 0) - c.refused_ms[0]) for c in refused]
    return Outcome(
        load,
        mix,
        len(refused) / len(everyone),
        sum(len(c.told_ms) == 1 for c in refused) / len(refused),
        statistics.mean(len(c.told_ms) for c in refused),
        statistics.mean((true - told) / true for told, true in waits),
        pool,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for mix in ("equal", "mixed", "long"):
        for load in LOADS:
            runs = [asdict(simulate(load, mix, options.requests, seed)) for seed in range(options.seeds)]
            rows.append({k: runs[0][k] if k == "mix" else statistics.median(r[k] for r in runs) for k in runs[0]})
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("mix     load  refused  first return  refusals  early  pool")
    for r in rows:
        print(
            f"{r['mix']:6} {r['load']:5.1f} {r['refused']:8.0%} {r['first_return']:13.0%} {r['refusals']:9.2f}"
            f" {r['early']:6.0%} {r['pool']:5.0%}"
        )


if __name__ == "__main__":
    main()
