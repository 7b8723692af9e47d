"""The plan of a step: which program attends over which tokens. Made on the device, without a word to the host.

``units`` programs per KV head share the step's tiles (``tile_tokens`` keys each) in equal ranges, cut at the ends of
sequences. A piece that is a whole sequence writes its result; other pieces leave a partial result that
:mod:`kvbudget_kernels.merge` combines. With T tiles in all and U units, unit u owns tiles ``u·T // U`` to
``(u+1)·T // U``, so programs differ by one tile at most; a range is never shorter than ``min_tiles`` on average, so
that partial results stay small beside the KV that they save. There are at most U + B pieces: known before a graph is
captured.

The batch-invariant mode (``fixed_tiles`` > 0) cuts at multiples of a fixed length from position 0 instead: a sequence's
result then never depends on who else is in the batch.
"""

from dataclasses import dataclass
from functools import partial

import torch
import triton

from kvbudget_kernels.device.plan import plan_kernel
from kvbudget_kernels.errors import require
from kvbudget_kernels.launch import launch

_BLOCK = 64
INVARIANT_CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """``units``: programs per KV head. ``min_tiles``: average least length of a unit's range. ``fixed_tiles``: 0, or
    the length of every piece in batch-invariant mode. ``tile_tokens``: keys per tile."""

    tile_tokens: int
    units: int
    min_tiles: int = 1
    fixed_tiles: int = 0

    @classmethod
    def balanced(
        cls, *, tile_tokens: int, kv_heads: int, group: int, element_bytes: float, sms: int, ctas_per_sm: int = 4
    ) -> "SplitPolicy":
        """Fills ``sms`` multiprocessors. A range is at least max(128, 32·G/e) tokens: partial results then cost at most
        an eighth of the KV's traffic."""
        least_tokens = max(128, int(32 * group / element_bytes))
        return cls(
            tile_tokens=tile_tokens,
            units=max(1, sms * ctas_per_sm // kv_heads),
            min_tiles=-(-least_tokens // tile_tokens),
        )

    @classmethod
    def batch_invariant(cls, *, tile_tokens: int, kv_heads: int, sms: int, ctas_per_sm: int = 4) -> "SplitPolicy":
        """Pieces of 512 tokens from position 0, merged in ascending order."""
        return cls(
            tile_tokens=tile_tokens,
            units=max(1, sms * ctas_per_sm // kv_heads),
            fixed_tiles=INVARIANT_CHUNK_TOKENS // tile_tokens,
        )

    def capacity(self, batch: int, max_tokens: int) -> int:
        """Most pieces that ``batch`` sequences of up to ``max_tokens`` tokens can give."""
        if self.fixed_tiles:
            return batch * max(1, -(-max_tokens // (self.fixed_tiles * self.tile_tokens)))
        return self.units + batch


@dataclass(frozen=True, slots=True)
class Workspace:
    """What a plan and its partial results live in: allocated once, for the largest step.

    ``work``: int32 [cap, 4], pieces (sequence, first token, end, row of the partial result or −1). ``o_indptr``: int32
    [batch + 1], each sequence's pieces. ``unit_indptr``: int32 [units + 1], each unit's pieces. ``n_work``: int32 [1].
    ``part_o``: fp32 [cap · kv_heads · rows · head_dim], ``part_lse``: fp32 [cap · kv_heads · rows], base 2.
    What stands in them before a step may be anything, NaN too.
    """

    policy: SplitPolicy
    max_batch: int
    max_tokens: int
    cap: int
    work: torch.Tensor
    o_indptr: torch.Tensor
    unit_indptr: torch.Tensor
    n_work: torch.Tensor
    part_o: torch.Tensor
    part_lse: torch.Tensor

    @classmethod
    def allocate(
        cls,
        policy: SplitPolicy,
        *,
        max_batch: int,
        max_tokens: int,
        kv_heads: int,
        rows: int,
        head_dim: int,
        device: torch.device,
    ) -> "Workspace":
        """``rows``: q_len · G of the largest step."""
        cap = policy.capacity(max_batch, max_tokens)
        empty = partial(torch.empty, device=device)
        return cls(
            policy=policy,
            max_batch=max_batch,
            max_tokens=max_tokens,
            cap=cap,
            work=empty(cap, 4, dtype=torch.int32),
            o_indptr=empty(max_batch + 1, dtype=torch.int32),
            unit_indptr=empty(policy.units + 1, dtype=torch.int32),
            n_work=empty(1, dtype=torch.int32),
            part_o=empty(cap * kv_heads * rows * head_dim, dtype=torch.float32),
            part_lse=empty(cap * kv_heads * rows, dtype=torch.float32),
        )

    @property
    def nbytes(self) -> int:
        tensors = (self.work, self.o_indptr, self.unit_indptr, self.n_work, self.part_o, self.part_lse)
        return sum(each.nbytes for each in tensors)


def plan(workspace: Workspace, seq_lens: torch.Tensor, *, q_len: int = 1, window_tokens: int | None = None) -> None:
    """Fills the workspace's lists for sequences of ``seq_lens`` (int32 [batch], 0 is padding) whose last ``q_len``
    tokens are the queries. Tokens that no query's window reaches are in no piece."""
    batch = seq_lens.shape[0]
    require(
        1 <= batch <= workspace.max_batch,
        "seq_lens",
        f"{batch} sequences for a workspace of {workspace.max_batch}",
        "allocate the workspace for the largest batch",
    )
    require(seq_lens.dtype == torch.int32, "seq_lens", f"dtype {seq_lens.dtype}", "give int32")
    policy = workspace.policy
    entries = max(workspace.cap, policy.units + 1)
    sequences = max(16, triton.next_power_of_2(batch))
    launch(
        plan_kernel,
        triton.cdiv(entries, _BLOCK),
        seq_lens,
        workspace.work,
        workspace.o_indptr,
        workspace.unit_indptr,
        workspace.n_work,
        batch,
        policy.units,
        policy.min_tiles,
        policy.fixed_tiles,
        workspace.cap,
        q_len,
        B_PAD=sequences,
        TILE=policy.tile_tokens,
        WINDOW=window_tokens or 0,
        BLOCK=_BLOCK,
        num_warps=4 if sequences <= 32 else 8,
    )
