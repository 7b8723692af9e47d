"""Replicas for a traffic, by Little's law: requests at once = requests per second × seconds per request.

    seconds   = seconds to the first token + output tokens × seconds per output token
    requests  = ⌈requests per second × seconds⌉
    pages     = pages of one request of input + output tokens (all of it is held at the end)
    replicas  = ⌈requests ÷ ⌊pages per replica × target ÷ pages⌋⌉        no more at once than the engine's own limit

4 requests a second of 800 output tokens at 25 ms each are 80 at once:

>>> at_once(Traffic(Fraction(4), 200, 800, Fraction(25, 1000)))
80
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from kvbudget.errors import InputError
from kvbudget.planner.question import Answer


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rates are exact. ``first_token_seconds``: waiting and prefill of one request."""

    requests_per_second: Fraction
    input_tokens: int
    output_tokens: int
    seconds_per_output_token: Fraction
    first_token_seconds: Fraction = Fraction(0)

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def seconds(self) -> Fraction:
        """Of one request."""
        return self.first_token_seconds + self.output_tokens * self.seconds_per_output_token


@dataclass(frozen=True, slots=True)
class Size:
    """``bound``: what limits the requests of one replica, ``KV`` or ``max-num-seqs``."""

    replicas: int
    requests: int
    requests_per_replica: int
    pages_each: int
    bound: str
    formula: tuple[str, ...]


def at_once(traffic: Traffic) -> int:
    """Requests that run at once on average, rounded up; at least one."""
    return max(1, math.ceil(traffic.requests_per_second * traffic.seconds))


def size(answer: Answer, traffic: Traffic, target_percent: int) -> Size:
    """Replicas of a plan that fits. KV is judged on its low end and filled up to ``target_percent``.

    Raises InputError where one request is longer than the plan allows, or fills a replica beyond the target."""
    plan = answer.budget
    if traffic.tokens > plan.max_model_len:
        reason = f"{traffic.tokens} tokens per request are above {plan.max_model_len}; raise it, or shorten requests"
        raise InputError("--max-model-len", reason)
    pages, each = plan.grantable_pages.low, plan.worst.pool.pages_for(traffic.tokens)
    by_kv = pages * target_percent // (100 * each)
    if by_kv == 0:
        reason = f"at {target_percent}% not one request of {traffic.tokens} tokens fits ({each} of {pages} pages)"
        raise InputError("--target-percent", f"{reason}; raise it")
    most, copies = answer.told.max_sequences, answer.told.data_parallel
    each_copy = by_kv if most is None else min(by_kv, most)
    per_replica = copies * each_copy
    requests = at_once(traffic)
    replicas = -(-requests // per_replica)
    first = f"{_number(traffic.first_token_seconds)} s + " if traffic.first_token_seconds else ""
    each_text = f"{traffic.output_tokens} × {_number(traffic.seconds_per_output_token)} s"
    formula = (
        f"seconds per request = {first}{each_text} = {_number(traffic.seconds)} s",
        f"requests at once = {_number(traffic.requests_per_second)}/s × {_number(traffic.seconds)} s, rounded up "
        f"= {requests}   (Little's law)",
        f"pages per request = {each} for {traffic.tokens} tokens",
        f"requests per replica = {pages} pages at least × {target_percent}% ÷ {each} = {by_kv}"
        + ("" if each_copy == by_kv else f", but no more than --max-num-seqs {most}")
        + ("" if copies == 1 else f"; {copies} copies = {per_replica}"),
        f"replicas = {requests} ÷ {per_replica}, rounded up = {replicas}",
    )
    bound = "KV" if each_copy == by_kv else "max-num-seqs"
    return Size(replicas, requests, per_replica, each, bound, formula)


def _number(value: Fraction) -> str:
    """
    >>> _number(Fraction(1, 40)), _number(Fraction(20))
    ('0.025', '20')
    """
    return f"{float(value):.6g}"
