"""PyTorch baseline for a decoding step on the CPU, eager, with a static cache. Requests are those of `serve_runs`.

    {"op": "prepare", "problem": P}    a model whose cache holds P.length tokens of each sequence; a run is a step of one token

P: embedDim, hiddenDim, numLayers, numHeads, numKvHeads, batch, length, dtype. Each step attends to the filled part of
the cache. This part is a slice, so no mask is needed.
"""

import torch
from torch import nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from serve import serve_runs

STEPS = 4096  # number of steps for which a cache has room


class Layer(nn.Module):
    def __init__(self, p, dtype):
        super().__init__()
        e, f = p["embedDim"], p["hiddenDim"]
        self.heads, self.kv_heads, self.size = p["numHeads"], p["numKvHeads"], e // p["numHeads"]
        weight = lambda *shape: nn.Parameter(torch.randn(*shape, dtype=dtype) * shape[-1] ** -0.5)
        self.norm1, self.norm2 = nn.Parameter(torch.ones(e, dtype=dtype)), nn.Parameter(torch.ones(e, dtype=dtype))
        self.qkv, self.out = weight((self.heads + 2 * self.kv_heads) * self.size, e), weight(e, self.heads * self.size)
        self.gate, self.up, self.down = weight(f, e), weight(f, e), weight(e, f)
        rows = p["length"] + STEPS
        self.k, self.v = (torch.randn(p["batch"], self.kv_heads, rows, self.size, dtype=dtype) for _ in range(2))

    def forward(self, x, at, cos, sin):
        qkv = linear(rms_norm(x, x.shape[-1:], self.norm1), self.qkv).unflatten(-1, (-1, self.size)).transpose(1, 2)
        both, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), 1)
        a, b = both.chunk(2, -1)
        q, k = (both * cos + torch.cat((-b, a), -1) * sin).split((self.heads, self.kv_heads), 1)
        self.k[:, :, at : at + 1], self.v[:, :, at : at + 1] = k, v
        grouped = self.heads != self.kv_heads
        y = scaled_dot_product_attention(q, self.k[:, :, : at + 1], self.v[:, :, : at + 1], enable_gqa=grouped)
        x = x + linear(y.transpose(1, 2).flatten(2), self.out)
        h = rms_norm(x, x.shape[-1:], self.norm2)
        return x + linear(silu(linear(h, self.gate)) * linear(h, self.up), self.down)


def prepare(request):
    """Returns a function that runs one step."""
    p = request["problem"]
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[p["dtype"]]
    layers = nn.ModuleList(Layer(p, dtype) for _ in range(p["numLayers"]))
    size = p["embedDim"] // p["numHeads"]
    angles = torch.outer(torch.arange(p["length"] + STEPS), 10_000 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    x = torch.randn(p["batch"], 1, p["embedDim"], dtype=dtype)
    at = p["length"]

    def run():
        nonlocal at
        if at == p["length"] + STEPS:
            at = p["length"]
        with torch.inference_mode():
            y = x
            for layer in layers:
                y = layer(y, at, cos[at], sin[at])
        at += 1

    return run


if __name__ == "__main__":
    serve_runs(prepare)
