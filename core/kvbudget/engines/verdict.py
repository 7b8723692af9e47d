"""Does one request of the longest length fit, and will the engine then live? Judged on the low end, with the reason.

refused        the engine would not even load: heads that do not divide, …
KV too small   the expected pool does not hold one request of max_model_len tokens
at risk        it is planned, but likely runs out of memory: only the expected pool holds the request, not its low
               end; or what lies outside the engine's share does not hold what must live there
fits           all else
"""

from dataclasses import replace

from kvbudget.engines.result import EngineBudget, StageBudget, Verdict

_GIB = 1024**3


def judged(plan: EngineBudget, refused: str | None) -> EngineBudget:
    """The plan with verdict and reason. ``refused`` is why the engine would not load, or None."""
    if refused:
        return replace(plan, verdict="refused", reason=refused)
    verdict, reason = _verdict(plan)
    return replace(plan, verdict=verdict, reason=reason)


def _verdict(plan: EngineBudget) -> tuple[Verdict, str]:
    length, pool = plan.max_model_len, plan.worst.pool
    need, pages = pool.pages_for(length), plan.grantable_pages
    needed = f"one request of {length} tokens needs {need} pages ({_gib(need * pool.page_bytes)} GiB)"
    if need > pages.expected:
        return "KV too small", f"{needed}; there are {pages.expected} ({_gib(plan.worst.kv.expected)} GiB)"
    for stage in plan.stages:
        crowded = _crowded(stage)
        if crowded:
            return "at risk", crowded
    if need > pages.low:
        return "at risk", f"{needed}; {pages.expected} are expected, but there may be as few as {pages.low}"
    return "fits", f"{needed}; there are at least {pages.low}"


def _crowded(stage: StageBudget) -> str | None:
    """Why what lies outside the engine's share runs out of memory, or None."""
    room = stage.memory_bytes - stage.usable_bytes
    wanted = sum(term.bytes.expected for term in stage.outside)
    if wanted <= room:
        return None
    parts = " + ".join(f"{term.name} {_gib(term.bytes.expected)}" for term in stage.outside)
    return (
        f"outside the engine's share are {_gib(room)} GiB, but {parts} = {_gib(wanted)} GiB must live there: "
        "the pool is planned and the engine then runs out of memory; lower the share"
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f}"
