"""Ring attention in plain PyTorch on CPUs, with its flash kernels on each block and gloo between the processes.

Rank 0 answers requests. The other ranks run the same commands.

    {"op": "prepare", "problem": P}     draws operands, checks the result on a short sequence, runs once
    {"op": "run"}                       {"begin": s, "end": s}: when the first rank began and the last ended, on CLOCK_MONOTONIC

P: direction, dtype, mask, d, n, numHeads. The algorithm is that of ring-flash-attention: every rank folds the keys of
one rank after another into its output, by log-sum-exp, while the next keys are being transferred. In the backward, dk
and dv are passed on with the keys. Causal masks use zigzag placement: rank r of p has chunks r and 2p - 1 - r of 2p.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import chain, repeat

import torch
import torch.distributed as dist

from serve import requests

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def exchange(tensors):
    """Starts sending tensors to the next rank. Returns the tensors from the previous rank, and the work to wait for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = [torch.empty_like(x) for x in tensors]
    calls = [dist.P2POp(dist.isend, x, (rank + 1) % size) for x in tensors]
    calls += [dist.P2POp(dist.irecv, x, (rank - 1) % size) for x in arriving]
    return arriving, dist.batch_isend_irecv(calls)


def finish(work):
    for each in work:
        each.wait()


def halves(step, causal):
    """Returns the rows of queries and of keys of a step's block (None: all), and whether the block is causal."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if not causal:
        return None, None, False
    if step == 0:
        return None, None, True
    # The first chunk of a lower rank is visible to all our queries. A higher rank is visible to our second chunk only.
    return (None, "first", False) if step <= rank else ("second", None, False)


def part(x, which):
    if which is None:
        return x
    half = x.shape[2] // 2
    return x[:, :, :half] if which == "first" else x[:, :, half:]


def merge(out, lse, block_out, block_lse):
    """Folds a block into rows of the output, in place."""
    block_lse = block_lse.unsqueeze(-1)
    # out - sigmoid(block_lse - lse) * (out - block_out), as ring-flash-attention has it
    out.sub_(torch.sigmoid(block_lse - lse) * (out - block_out))
    lse.copy_(torch.logaddexp(lse, block_lse))


def forward(q, k, v, causal):
    size = dist.get_world_size()
    out = lse = None
    for step in range(size):
        if step + 1 < size:
            following, work = exchange([k, v])
        rows, keys, diagonal = halves(step, causal)
        block, block_lse = flash(part(q, rows), part(k, keys), part(v, keys), 0.0, diagonal)
        if out is None:
            out, lse = block.float(), block_lse.unsqueeze(-1).clone()
        else:
            merge(part(out, rows), part(lse, rows), block.float(), block_lse)
        if step + 1 < size:
            finish(work)
            k, v = following
    return out.to(q.dtype), lse.squeeze(-1)


def backward(d_out, q, k, v, out, lse, causal):
    size = dist.get_world_size()
    dq = torch.zeros(q.shape)
    dk, dv = torch.zeros(k.shape), torch.zeros(v.shape)
    traveling = None
    for step in range(size):
        if step + 1 < size:
            following, work = exchange([k, v])
        rows, keys, diagonal = halves(step, causal)
        saved = [part(x, rows) for x in (d_out, q)], [part(k, keys), part(v, keys)], [part(out, rows), part(lse, rows)]
        (d_rows, q_rows), (k_rows, v_rows), (out_rows, lse_rows) = saved
        block = flash_backward(
            d_rows.contiguous(), q_rows.contiguous(), k_rows, v_rows, out_rows.contiguous(), lse_rows.contiguous(), 0.0, diagonal
        )
        part(dq, rows).add_(block[0])
        if traveling is not None:
            finish(traveling[1])
            dk, dv = traveling[0]
        part(dk, keys).add_(block[1])
        part(dv, keys).add_(block[2])
        traveling = exchange([dk, dv])
        if step + 1 < size:
            finish(work)
            k, v = following
    finish(traveling[1])
    dk, dv = traveling[0]
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def shard(x, causal):
    """Returns this rank's rows of x [B, H, n, d]."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if not causal:
        return x.chunk(size, 2)[rank].contiguous()
    chunks = x.chunk(2 * size, 2)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], 2)


class Run:
    def __init__(self, problem):
        self.causal = problem["mask"] == "causal"
        self.isBackward = problem["direction"] == "backward"
        check(problem["d"], self.causal)
        rows = problem["n"] // dist.get_world_size()
        shape = [1, problem["numHeads"], rows, problem["d"]]
        self.q, self.k, self.v, self.d_out = (torch.randn(shape, dtype=DTYPES[problem["dtype"]]) for _ in range(4))

    def once(self):
        if self.isBackward:
            out, lse = forward(self.q, self.k, self.v, self.causal)
        dist.barrier()
        begin = time.monotonic()
        if self.isBackward:
            backward(self.d_out, self.q, self.k, self.v, out, lse, self.causal)
        else:
            forward(self.q, self.k, self.v, self.causal)
        return begin, time.monotonic()


def check(d, causal):
    """Compares the ring with attention in float64, because only a correct ring is a valid baseline."""
    torch.manual_seed(1)
    whole = [torch.randn(1, 2, 64 * dist.get_world_size(), d) for _ in range(4)]
    inputs = [x.double().requires_grad_(True) for x in whole[:3]]
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)
    wanted = [expected, *torch.autograd.grad(expected, inputs, whole[3].double())]
    q, k, v, d_out = (shard(x, causal) for x in whole)
    out, lse = forward(q, k, v, causal)
    for x, y in zip((out, *backward(d_out, q, k, v, out, lse, causal)), wanted):
        error = (x.double() - shard(y, causal)).abs().max().item()
        if error > 1e-4:
            raise RuntimeError(f"the peer's own ring is wrong by {error}")


def follow(commands):
    """Runs the commands of rank 0 on all ranks. The commands of other ranks are ignored."""
    run = None
    for command in commands:
        box = [command]
        dist.broadcast_object_list(box)
        command = box[0]
        if command["op"] == "quit":
            return
        if command["op"] == "prepare":
            run = Run(command["problem"])
        begin, end = run.once()
        times = [None] * dist.get_world_size()
        dist.all_gather_object(times, (begin, end))
        if dist.get_rank() == 0:
            answer = {"begin": min(b for b, _ in times), "end": max(e for _, e in times)}
            print(json.dumps(answer), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--meet")
    options = parser.parse_args()
    torch.set_num_threads(1)
    others = []
    with tempfile.TemporaryDirectory() as folder:
        meet = options.meet or os.path.join(folder, "meet")
        if options.rank == 0:
            common = [sys.executable, __file__, "--ranks", str(options.ranks), "--meet", meet]
            others = [subprocess.Popen([*common, "--rank", str(r)], stdin=subprocess.DEVNULL) for r in range(1, options.ranks)]
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=options.rank, world_size=options.ranks)
        follow(chain(requests(), [{"op": "quit"}]) if options.rank == 0 else repeat(None))
        dist.destroy_process_group()
        for other in others:
            other.wait()


if __name__ == "__main__":
    main()
