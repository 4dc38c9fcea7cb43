"""PyTorch baseline for small calls, linear layers and training steps on the CPU. Requests are those of `serve_runs`.

    {"op": "prepare", "what": "call", "name": N, "calls": n}   N: add, add.grad, mul.grad, of 16 elements; a run is all calls
    {"op": "prepare", "what": "linear", "problem": L}          a linear layer, optionally with bias and gelu
    {"op": "prepare", "what": "step", "problem": P}            a transformer's forward, backward and AdamW step

P: embedDim, numLayers, numHeads, batch, tokens. L: dtype, m, n, k, hasGelu.
"""

import torch
from torch import nn
from torch.nn.functional import gelu, mse_loss, scaled_dot_product_attention

from serve import serve_runs

CALLS = {"add": (torch.add, False), "add.grad": (torch.add, True), "mul.grad": (torch.mul, True)}


def calls(name, count):
    """Returns a function that calls an operation `count` times. Each result is freed at once."""
    call, grad = CALLS[name]
    a, b = torch.ones(16, requires_grad=grad), torch.ones(16)

    def run():
        for _ in range(count):
            call(a, b)

    return run


class Block(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.qkv, self.out = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
        self.up, self.down = nn.Linear(embed_dim, 4 * embed_dim), nn.Linear(4 * embed_dim, embed_dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(gelu(self.up(self.norm2(x))))


def step(problem):
    """Returns a function that runs one step, always on the same batch."""
    embed_dim = problem["embedDim"]
    blocks = [Block(embed_dim, problem["numHeads"]) for _ in range(problem["numLayers"])]
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, target = (torch.randn(problem["batch"], problem["tokens"], embed_dim) for _ in range(2))

    def run():
        mse_loss(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def linear(problem):
    """Returns a function that multiplies x [m,k] by weight [n,k], with bias and gelu if the problem has them."""
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[problem["dtype"]]
    m, n, k = problem["m"], problem["n"], problem["k"]
    x, weight = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype) * k**-0.5
    bias = torch.randn(n, dtype=dtype) if problem["hasGelu"] else None

    def run():
        with torch.no_grad():
            y = torch.nn.functional.linear(x, weight, bias)
            return gelu(y) if problem["hasGelu"] else y

    return run


def prepare(request):
    if request["what"] == "step":
        return step(request["problem"])
    if request["what"] == "linear":
        return linear(request["problem"])
    return calls(request["name"], request["calls"])


if __name__ == "__main__":
    serve_runs(prepare)
