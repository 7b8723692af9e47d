"""How many tokens a request may generate, decided before anything is reserved. Pure."""

from typing import Final, Literal

from kvbudget.plan import PlanLimits
from kvbudget_worker.refusals import Refused, context_length_exceeded, invalid

COMPLETION_DEFAULT_TOKENS: Final = 16
"""What the completions API generates when no maximum is named."""

Kind = Literal["completion", "chat"]


def output_limit(kind: Kind, prompt_tokens: int, asked: int | None, limits: PlanLimits, *, param: str) -> int:
    """Tokens that may be generated, which is also what is reserved.

    ``asked`` None: min(default output tokens, what the context leaves), for completions at most 16. Nothing that a
    client named is ever cut: ``param`` is the field it used. Raises Refused (400).
    """
    source = "messages" if kind == "chat" else "prompt"
    if prompt_tokens < 1:
        raise Refused(invalid(source, f"{source} has no tokens: give at least one"))
    if prompt_tokens > limits.max_input_tokens:
        raise Refused(
            context_length_exceeded(
                source, f"{source} has {prompt_tokens} tokens; this service takes at most {limits.max_input_tokens}"
            )
        )
    left = limits.max_model_len - prompt_tokens
    if left < 1:
        raise Refused(
            context_length_exceeded(
                source,
                f"{source} has {prompt_tokens} tokens and leaves no room for one token of output in the context of "
                f"{limits.max_model_len}",
            )
        )
    if asked is None:
        default = min(limits.default_output_tokens, limits.max_output_tokens, left)
        return min(COMPLETION_DEFAULT_TOKENS, default) if kind == "completion" else default
    if asked > limits.max_output_tokens:
        raise Refused(
            context_length_exceeded(
                param, f"{param} is {asked}; this service generates at most {limits.max_output_tokens} tokens"
            )
        )
    if asked > left:
        raise Refused(
            context_length_exceeded(
                param,
                f"{prompt_tokens} prompt tokens + {param} {asked} = {prompt_tokens + asked} tokens; the context holds "
                f"{limits.max_model_len}, so {param} can be at most {left}",
            )
        )
    return asked
