"""A stand-in for DeepEP over torch's gloo, on the CPU: the interface that the check uses, done in the plainest way.

STAND_IN_FAULT=NAME:RANK makes one rank misbehave: the check has to find it.
"""

import os
import time

import torch
import torch.distributed as dist

__version__ = "stand-in"
topk_idx_t = torch.int64
_FAULT, _, _FAULTY_RANK = os.environ.get("STAND_IN_FAULT", "").partition(":")


class EPBuffer:
    """dispatch and combine by gathering everything everywhere."""

    def __init__(self, group, num_max_tokens_per_rank, hidden, num_topk, explicitly_destroy, **limits):
        assert explicitly_destroy
        self.group, self.rank, self.ranks = group, group.rank(), group.size()
        self.faulty = _FAULT if str(self.rank) == _FAULTY_RANK else ""
        if self.faulty == "segfault":
            os.kill(os.getpid(), 11)
        if self.faulty == "hang":
            time.sleep(600)
        if self.faulty == "raise":
            raise RuntimeError("NCCL GIN is unavailable")

    def _gather(self, mine):
        parts = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(parts, mine.contiguous())
        return torch.cat(parts)

    def dispatch(self, x, topk_idx, topk_weights, num_experts, do_cpu_sync):
        """Rows for this rank in a shuffled order; without do_cpu_sync padded to the capacity."""
        local = num_experts // self.ranks
        everything, chosen, weights = self._gather(x), self._gather(topk_idx), self._gather(topk_weights)
        here = (chosen >= self.rank * local) & (chosen < (self.rank + 1) * local)
        picked = here.any(1).nonzero()[:, 0]
        picked = picked[torch.randperm(len(picked))]
        rows, given = everything[picked].clone(), weights[picked].clone()
        mapped = torch.where(here, chosen - self.rank * local, -1)[picked]
        if self.faulty == "row":
            rows[3, -1] += 1
        if self.faulty == "lost":
            rows, given, mapped, picked = rows[1:], given[1:], mapped[1:], picked[1:]
        if self.faulty == "expert":
            mapped = torch.where(mapped >= 0, (mapped + 1) % local, -1)
        if self.faulty == "weight":
            given = given * 2
        if not do_cpu_sync:
            rows = torch.cat([rows, rows.new_zeros(len(everything) - len(rows), rows.shape[1])])
        return rows, mapped, given, (picked, len(x)), None

    def combine(self, x, handle):
        """The sum over ranks of what each made of a token, back where the token came from."""
        picked, tokens = handle
        total = torch.zeros(self.ranks * tokens, x.shape[1])
        total[picked] = x[: len(picked)].float()
        dist.all_reduce(total)
        mine = total[self.rank * tokens : (self.rank + 1) * tokens]
        if self.faulty == "sum":
            mine[0, 0] += 0.5
        return mine.to(torch.bfloat16), None, None

    def destroy(self):
        """As in the library, this needs the process group."""
        assert dist.is_initialized()
