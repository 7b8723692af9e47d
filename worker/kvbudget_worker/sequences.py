"""The state of one choice of one request while it is live."""

from dataclasses import dataclass, field

from kvbudget_worker.batch import Chunk, SamplingParams
from kvbudget_worker.blocks import PageKey
from kvbudget_worker.requests import EndReason, FinishReason, Request


@dataclass(slots=True, eq=False)
class Group:
    """A live request: its choices share the prompt's full pages; the first one, the leader, computes the prompt.

    ``started_ms``: when its first step was scheduled, once ``started``. ``root``: where its chain of ``keys``, those of
    the prompt's full pages, begins.
    """

    request: Request
    root: bytes
    keys: list[PageKey]
    cached_tokens: int
    private_pages: int
    """Pages of each further choice: all but the prompt's full pages."""
    sequences: list["Sequence"] = field(default_factory=list)
    started: bool = False
    started_ms: int = 0
    live_sequences: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice. ``pages[i]`` holds positions ``i × page tokens …``; the first ``computed`` positions are in them.

    ``unbound_pages``: its share of the request's reservation that has no physical page yet. ``keys``: of its
    registered pages, in order. ``copy_from``: see :meth:`Scheduler._fork`.
    """

    seq_id: int
    group: Group
    choice: int
    params: SamplingParams
    unbound_pages: int
    pages: tuple[int, ...] = ()
    keys: list[PageKey] = field(default_factory=list)
    computed: int = 0
    output: tuple[int, ...] = ()
    copy_from: int | None = None
    end: EndReason | None = None

    @property
    def known(self) -> int:
        """Tokens whose ids are known: the prompt and what was sampled."""
        return len(self.group.request.prompt) + len(self.output)

    @property
    def decoding(self) -> bool:
        """The prompt is computed and the first token sampled: each further step is one token."""
        return bool(self.output)

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids at positions ``start … stop - 1``."""
        prompt = self.group.request.prompt
        if stop <= len(prompt):
            return prompt[start:stop]
        return prompt[start:] + self.output[max(start - len(prompt), 0) : stop - len(prompt)]

    def chunk(self, count: int) -> Chunk:
        """The next ``count`` tokens as a share of a step; their pages must be there."""
        request = self.group.request
        stop = self.computed + count
        return Chunk(
            seq_id=self.seq_id,
            token_ids=self.tokens(self.computed, stop),
            start=self.computed,
            pages=self.pages,
            sample=stop == self.known,
            params=self.params,
            banned_ids=request.ending_ids if len(self.output) < request.min_tokens else (),
            output_ids=self.output,
        )

    def finish_reason(self) -> FinishReason | None:
        """Whether the newest token is the last one. ``stop`` wins where both apply. Ending tokens before ``min_tokens``
        do not occur: :meth:`chunk` bans them."""
        request = self.group.request
        if self.output[-1] in request.ending_ids:
            return "stop"
        if len(self.output) >= request.max_output_tokens:
            return "length"
        return None
