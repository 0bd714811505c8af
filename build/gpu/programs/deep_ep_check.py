"""DeepEP's dispatch and combine over N ranks: exactly what a torch reference computes from all-gathered inputs.

Every rank sends 128 tokens of 4096 bf16 values to the top 6 of 64 experts, which lie in equal shares on the ranks.
A rank multiplies what it received with its experts' gains and the router's weights, and combine sums the ranks' parts.
Tokens are small integers, weights 0.5 or 1, gains 1, 2 or 3: every partial sum is a multiple of 0.5 under 64 and thus
exact in bf16, in whatever order it is added. So received rows and combined rows have to be *equal* to the reference.
The first eight values of a token spell its number in base 4, which tells received rows apart, whatever their order.

With one rank the same is done; nothing crosses between GPUs then, and the figures say so.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build.gpu.programs.ranks import Verdict, run_ranks

if TYPE_CHECKING:
    import torch

DIGITS, BASE = 8, 4


@dataclass(frozen=True)
class Problem:
    """The sizes: ranks, tokens a rank, values a token, experts in all, experts a token."""

    ranks: int
    tokens: int
    hidden: int
    experts: int
    topk: int
    device: str

    @property
    def local_experts(self) -> int:
        """Experts on each rank."""
        return self.experts // self.ranks


def make_inputs(problem: Problem, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One rank's tokens [tokens, hidden] bf16, experts [tokens, topk] int64 and weights [tokens, topk] fp32."""
    import torch

    generator = torch.Generator().manual_seed(1000 + rank)
    x = torch.randint(-2, 3, (problem.tokens, problem.hidden), generator=generator)
    number = rank * problem.tokens + torch.arange(problem.tokens)
    x[:, :DIGITS] = (number[:, None] // BASE ** torch.arange(DIGITS)) % BASE
    chosen = torch.rand(problem.tokens, problem.experts, generator=generator).topk(problem.topk).indices
    weights = torch.randint(1, 3, (problem.tokens, problem.topk), generator=generator) / 2
    device = torch.device(problem.device)
    return x.to(device, torch.bfloat16), chosen.to(device), weights.to(device, torch.float32)


def gains(problem: Problem, device: torch.device) -> torch.Tensor:
    """What each expert multiplies its tokens with: [experts] fp32."""
    import torch

    return (1 + torch.arange(problem.experts, device=device) % 3).float()


def numbers_of(rows: torch.Tensor) -> torch.Tensor:
    """The token numbers that rows spell: [rows] int64."""
    import torch

    return (rows[:, :DIGITS].long() * BASE ** torch.arange(DIGITS, device=rows.device)).sum(1)


def check_received(
    problem: Problem, rank: int, received: tuple[torch.Tensor, ...], gathered: tuple[torch.Tensor, ...]
) -> str:
    """Empty if this rank got each token that chose one of its experts, once, unchanged, with experts and weights."""
    import torch

    x, chosen, weights = gathered
    first = rank * problem.local_experts
    mine = (chosen >= first) & (chosen < first + problem.local_experts)
    wanted = mine.any(1)
    rows, local, given = received
    if len(rows) != int(wanted.sum()):
        return f"dispatch: {len(rows)} rows were received, {int(wanted.sum())} were sent here"
    order = numbers_of(rows).argsort()
    if not torch.equal(rows[order], x[wanted]):
        wrong = int((rows[order] != x[wanted]).any(1).sum())
        return f"dispatch: {wrong} of {len(rows)} received rows differ from what was sent"
    expected = torch.where(mine, chosen - first, -1)[wanted]
    if not torch.equal(local[order].long(), expected):
        return "dispatch: the experts of received tokens differ from what was sent"
    kept = expected >= 0
    if not torch.equal(given[order][kept], weights[wanted][kept]):
        return "dispatch: the weights of received tokens differ from what was sent"
    return ""


def apply_experts(problem: Problem, rank: int, rows: torch.Tensor, local: torch.Tensor, given: torch.Tensor) -> Any:
    """This rank's part of the answer: rows times the sum of weight and gain over the experts that lie here."""
    import torch

    gain = gains(problem, rows.device)[(local.long() + rank * problem.local_experts).clamp_min(0)]
    factor = torch.where(local >= 0, given * gain, 0.0).sum(1, keepdim=True)
    return (rows.float() * factor).to(torch.bfloat16)


def median_us(step: Callable[[], object], align: Callable[[], object], device: str, repeats: int = 50) -> float:
    """The median time of one step in microseconds, the ranks lined up before each; on a GPU by CUDA events."""
    import torch

    event: Any = torch.cuda.Event  # untyped in torch
    times: list[float] = []
    for _ in range(10 + repeats):  # the first ten warm up
        align()
        if device == "cpu":
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e6)
            continue
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[10:])


def loaded_nccl() -> str:
    """The version of the NCCL library that this process mapped: torch's own number is the one it was compiled with."""
    import ctypes

    mapped = sorted(
        {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libnccl" in line}
    )
    if not mapped:
        return "none"
    number = ctypes.c_int()
    ctypes.CDLL(mapped[0]).ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def decide_gin() -> str:
    """Is DeepEP's GPU-initiated network "on" or "off"? deepinfer decides; what the user set is not looked at."""
    os.environ.pop("EP_DISABLE_GIN", None)
    import deepinfer  # noqa: F401 - sets EP_DISABLE_GIN where there is no InfiniBand device; finds deep_ep

    off = os.environ.get("EP_DISABLE_GIN", "0") != "0"
    if not off and not any(Path(folder).is_dir() for folder in ("/dev/infiniband", "/sys/class/infiniband")):
        raise RuntimeError("deepinfer left GIN on although there is no InfiniBand device: DeepEP would stop")
    return "off" if off else "on"


def work(problem: Problem, rank: int, folder: str) -> tuple[dict[str, object], str]:
    """What one rank does, with `folder` shared by all; (figures, empty or what is wrong)."""
    gin = decide_gin()
    import torch
    import torch.distributed as dist

    on_gpu = problem.device == "cuda"
    if on_gpu:
        if torch.cuda.device_count() < problem.ranks:
            return {}, f"{problem.ranks} ranks need as many GPUs, torch sees {torch.cuda.device_count()}"
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=problem.ranks,
        device_id=torch.device("cuda", rank) if on_gpu else None,
    )
    import deep_ep

    buffer = deep_ep.EPBuffer(
        dist.group.WORLD,
        num_max_tokens_per_rank=problem.tokens,
        hidden=problem.hidden,
        num_topk=problem.topk,
        num_cpu_timeout_secs=60,
        num_gpu_timeout_secs=60,
        explicitly_destroy=True,
    )
    # After an exception nothing is destroyed: that waits for the other ranks, and the reason would never be told.
    figures, wrong = exchange(problem, rank, buffer, deep_ep.topk_idx_t)
    if on_gpu:
        torch.cuda.synchronize()
    buffer.destroy()  # before the process group, whose communicator it uses
    dist.destroy_process_group()
    figures |= {"version": deep_ep.__version__, "path": deep_ep.__file__, "gin": gin, "nccl": loaded_nccl()}
    return figures, wrong


def exchange(problem: Problem, rank: int, buffer: Any, index_type: torch.dtype) -> tuple[dict[str, object], str]:
    """Dispatch, experts, combine; compare with the reference; then time the pair."""
    import torch
    import torch.distributed as dist

    x, chosen, weights = make_inputs(problem, rank)
    gathered = []
    for mine in (x, chosen, weights):
        parts = [torch.empty_like(mine) for _ in range(problem.ranks)]
        dist.all_gather(parts, mine)
        gathered.append(torch.cat(parts))
    expert_ids = chosen.to(index_type)

    def dispatch(synced: bool) -> Any:
        return buffer.dispatch(
            x, topk_idx=expert_ids, topk_weights=weights, num_experts=problem.experts, do_cpu_sync=synced
        )

    rows, local, given, handle, _ = dispatch(True)
    wrong = check_received(problem, rank, (rows, local, given), (gathered[0], gathered[1], gathered[2]))
    combined, _, _ = buffer.combine(apply_experts(problem, rank, rows, local, given), handle)
    reference = (x.float() * (weights * gains(problem, x.device)[chosen]).sum(1, keepdim=True)).to(torch.bfloat16)
    if not wrong and not torch.equal(combined, reference):
        count = int((combined != reference).sum())
        wrong = f"combine: {count} of {reference.numel()} values differ from the reference"

    def step(synced: bool) -> None:
        sent, _, _, ticket, _ = dispatch(synced)
        buffer.combine(sent, ticket)

    token = torch.zeros(1, device=x.device)
    figures: dict[str, object] = {
        "received": len(rows),
        # What decoding does: the receiver's counts stay on the GPU.
        "latency_us": median_us(lambda: step(False), lambda: dist.all_reduce(token), problem.device),
        "latency_with_cpu_sync_us": median_us(lambda: step(True), lambda: dist.all_reduce(token), problem.device),
    }
    return figures, wrong


def summary(problem: Problem, verdicts: list[Verdict]) -> tuple[dict[str, object], str]:
    """The figures of all ranks as one (the slowest rank counts), and the reasons: what a dead rank does to the others
    comes after its own end.
    """
    bad = [(rank, found) for rank, found in enumerate(verdicts) if found.reason]
    bad.sort(key=lambda item: ("died", "reported", "stopped").index(item[1].end))
    reason = "; ".join(f"rank {rank}: {found.reason}" for rank, found in bad)
    figures: dict[str, object] = {"ranks": problem.ranks, "tokens": problem.tokens, "hidden": problem.hidden}
    if problem.ranks == 1:
        figures["note"] = "one rank: nothing crossed between GPUs"
    measured = [found.figures for found in verdicts if found.figures]
    if measured:
        figures |= measured[0]
        for name in ("latency_us", "latency_with_cpu_sync_us"):
            figures[name] = max(part[name] for part in measured)
        figures["received"] = [part["received"] for part in measured]
    return figures, reason


def main() -> int:
    """Parse, run the ranks, print the verdict."""
    parser = argparse.ArgumentParser(description="check DeepEP's dispatch and combine")
    parser.add_argument("--ranks", type=int, default=1, help="one process and one GPU each")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--topk", type=int, default=6)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for all ranks")
    args = parser.parse_args()
    if args.ranks < 1 or args.experts % args.ranks:
        print(f"error: {args.experts} experts cannot be shared by {args.ranks} ranks", file=sys.stderr)
        return 1
    problem = Problem(args.ranks, args.tokens, args.hidden, args.experts, args.topk, args.device)
    figures, reason = summary(problem, run_ranks(functools.partial(work, problem), args.ranks, args.limit))
    print(json.dumps({"ok": not reason, "reason": reason, "figures": figures}))
    return 0 if not reason else 5


if __name__ == "__main__":
    sys.exit(main())
