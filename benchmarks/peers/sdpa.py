"""PyTorch baseline, on a GPU or on CPUs. Requests and their replies:

    {"op": "hello"}                                                versions and device
    {"op": "check", "backend": B, "problem": P}                    errors against float64, each ‖x − ref‖ / ‖ref‖
    {"op": "prepare", "backend": B, "problem": P}                  draws operands, runs once
    {"op": "sample", "backend": B, "count": n}                     seconds of n runs, and of the run before, "first"
    {"op": "attend", "backend": B, "operands": O}                  results of given operands, see `attend_operands`
    {"op": "release"}                                              frees the operands
    {"op": "operation", "name": N, "sizes": S, "count": n}         an operation of OPERATIONS, timed as in "sample"

P: direction, dtype, mask, d, n, numHeads, batch; optionally numKvHeads and, if there are fewer than n, queries.
"""

import argparse
import base64
import math
import platform
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from serve import serve

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "flash-deterministic": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}
OPERAND_SETS = 2
# Deterministic mode would fill every new tensor with NaN.
torch.utils.deterministic.fill_uninitialized_memory = False


class EventClock:
    """Marks are events in the stream, so host time is excluded while the GPU has queued work."""

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def laps(self, marks):
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]


class HostClock:
    """Marks are host times, because without a GPU every call returns when it is complete."""

    def mark(self):
        return time.perf_counter()

    def laps(self, marks):
        return [b - a for a, b in zip(marks, marks[1:])]


class Attention:
    """One problem. Runs alternate between sets of operands, so that no run finds its operands in the cache."""

    def __init__(self, problem, device):
        self.problem = problem
        self.backward = problem["direction"] == "backward"
        heads, queries = problem["numHeads"], problem.get("queries", problem["n"])
        self.kv_heads = problem.get("numKvHeads", heads)
        wanted = [(heads, queries), (self.kv_heads, problem["n"]), (self.kv_heads, problem["n"]), (heads, queries)]
        draw = lambda heads, rows: torch.randn(
            [problem["batch"], heads, rows, problem["d"]], device=device, dtype=DTYPES[problem["dtype"]]
        )
        self.sets = [[draw(*each) for each in wanted] for _ in range(OPERAND_SETS)]
        self.graphs = {}
        if self.backward:
            for q, k, v, _ in self.sets:
                for x in (q, k, v):
                    x.requires_grad_(True)

    def attend(self, backend, q, k, v):
        with sdpa_kernel([BACKENDS[backend]]):
            is_causal = self.problem["mask"] == "causal"
            return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=self.kv_heads != q.shape[1])

    def once(self, backend, turn):
        q, k, v, d_out = self.sets[turn % OPERAND_SETS]
        if not self.backward:
            with torch.no_grad():
                return self.attend(backend, q, k, v)
        key = (backend, turn % OPERAND_SETS)
        if key not in self.graphs:
            self.graphs[key] = self.attend(backend, q, k, v)
        # The graph is kept, so the forward is not timed. No gradients are accumulated.
        return torch.autograd.grad(self.graphs[key], (q, k, v), d_out, retain_graph=True)


def gradients(out, inputs, d_out):
    return [out, *torch.autograd.grad(out, inputs, d_out)]


def check(problem, backend, device):
    """Returns relative errors of out, dq, dk, dv against the definition in float64."""
    run = Attention({**problem, "direction": "backward"}, device)
    q, k, v, d_out = run.sets[0]
    found = gradients(run.attend(backend, q, k, v), (q, k, v), d_out)
    wide = [x.detach().double().requires_grad_(True) for x in (q, k, v)]
    scores = wide[0] @ wide[1].transpose(-1, -2) / math.sqrt(problem["d"])
    if problem["mask"] == "causal":
        n = problem["n"]
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=device).triu(1), -math.inf)
    right = gradients(scores.softmax(-1) @ wide[2], wide, d_out.double())
    pairs = zip(("out", "dq", "dk", "dv"), found, right)
    return {name: ((x.double() - y).norm() / y.norm()).item() for name, x, y in pairs}


def attend_operands(operands, backend):
    """Returns out, dq, dk, dv for q, k, v, dOut [1,1,n,d], float32, and `visible`, n² bytes. All are in base64."""
    n, d = operands["n"], operands["d"]
    read = lambda name, dtype: torch.frombuffer(bytearray(base64.b64decode(operands[name])), dtype=dtype)
    dtype = DTYPES[operands["dtype"]]
    q, k, v, d_out = (read(name, torch.float32).reshape(1, 1, n, d).to(dtype) for name in ("q", "k", "v", "dOut"))
    for x in (q, k, v):
        x.requires_grad_(True)
    visible = read("visible", torch.uint8).reshape(1, 1, n, n).bool()
    with sdpa_kernel([BACKENDS[backend]]):
        out = scaled_dot_product_attention(q, k, v, attn_mask=None if visible.all() else visible)
    found = zip(("out", "dq", "dk", "dv"), gradients(out, (q, k, v), d_out))
    return {name: base64.b64encode(x.detach().float().numpy().tobytes()).decode() for name, x in found}


def copy(x, y):
    return y.copy_(x)


# For each operation, a function, and the shape and dtype of each operand. Axes are names of `sizes`.
MATRIX = ("tokens", "hidden")
OPERATIONS = {
    "copy": (copy, [(MATRIX, torch.float32)] * 2),
    "matmul": (torch.matmul, [(("numProductRows", "numProductRows"), torch.bfloat16)] * 2),
    "cast": (lambda x: x.to(torch.bfloat16), [(MATRIX, torch.float32)]),
    "add": (lambda x: x + x, [(MATRIX, torch.bfloat16)]),
    "gelu": (torch.nn.functional.gelu, [(MATRIX, torch.bfloat16)]),
    "layerNorm": (lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), [(MATRIX, torch.bfloat16)]),
    "softmax": (lambda x: x.softmax(-1), [(MATRIX, torch.bfloat16)]),
    "sum": (torch.sum, [(MATRIX, torch.bfloat16)]),
    "sumOfRows": (lambda x: x.sum(1), [(MATRIX, torch.bfloat16)]),
    "sumOfColumns": (lambda x: x.sum(0), [(MATRIX, torch.bfloat16)]),
}


def operation(name, sizes, device):
    """Returns a function of the turn that runs the operation once. Operands are random, because zeros are faster."""
    run, operands = OPERATIONS[name]
    draw = lambda: [
        torch.randn([sizes[axis] for axis in shape], device=device, dtype=dtype) for shape, dtype in operands
    ]
    sets = [draw() for _ in range(OPERAND_SETS)]
    return lambda turn: run(*sets[turn % OPERAND_SETS])


class Peer:
    def __init__(self, device):
        self.device = torch.device(device)
        self.clock = EventClock() if self.device.type == "cuda" else HostClock()
        self.run = None

    def hello(self):
        about = {"torch": torch.__version__, "python": platform.python_version(), "device": platform.processor() or "cpu"}
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            about |= {
                "device": properties.name,
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                "l2Bytes": properties.L2_cache_size,
            }
        return about

    def sample(self, once, count):
        marks = [self.clock.mark()]
        for turn in range(count + 1):
            once(turn)
            marks.append(self.clock.mark())
        first, *seconds = self.clock.laps(marks)
        return {"first": first, "seconds": seconds}

    def answer(self, request):
        op = request["op"]
        # Read when a gradient is computed: dq is summed in a fixed order instead of by atomics. cuDNN refuses it.
        torch.use_deterministic_algorithms(request.get("backend", "").endswith("deterministic"))
        if op == "hello":
            return self.hello()
        if op == "check":
            return check(request["problem"], request["backend"], self.device)
        if op == "prepare":
            if request["problem"]["direction"] == "forward" and request["backend"].endswith("deterministic"):
                raise ValueError("the forward is the same in every mode")
            if self.run is None or self.run.problem != request["problem"]:
                self.run = None
                self.run = Attention(request["problem"], self.device)
            return self.sample(lambda turn: self.run.once(request["backend"], turn), 1)
        if op == "sample":
            return self.sample(lambda turn: self.run.once(request["backend"], turn), request["count"])
        if op == "attend":
            return attend_operands(request["operands"], request["backend"])
        if op == "operation":
            once = operation(request["name"], request["sizes"], self.device)
            once(0)
            return self.sample(once, request["count"])
        if op == "release":
            self.run = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return {}
        raise ValueError(f"no operation {op!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    serve(Peer(parser.parse_args().device).answer)


if __name__ == "__main__":
    main()
