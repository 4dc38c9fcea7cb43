"""Writes attention-variants.json: attention layers of Hugging Face transformers with sinks (gpt-oss) and softcap (Gemma 2), in float32.

    pip install torch==2.13.0 transformers==5.18.0
    python attention-variants.py > attention-variants.json
"""

import json

import torch
from torch import nn
from transformers import GptOssConfig, __version__
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_attention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

BATCH, LENGTH, EMBED, HEADS, KV_HEADS, HEAD_DIM, WINDOW, SOFTCAP = 1, 7, 8, 4, 2, 4, 3, 0.5


def numbers(x):
    return [float(f"{value:.9g}") for value in x.detach().flatten().tolist()]


def additive_mask(window):
    rows = torch.arange(LENGTH)
    distance = rows[:, None] - rows[None, :]
    hidden = (distance < 0) | (distance >= window)
    return torch.zeros(LENGTH, LENGTH).masked_fill(hidden, torch.finfo(torch.float32).min)[None, None]


def gpt_oss(window):
    torch.manual_seed(window)
    config = GptOssConfig(
        hidden_size=EMBED,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        num_hidden_layers=1,
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    layer = GptOssAttention(config, 0)
    nn.init.normal_(layer.sinks, std=1.0)
    x = torch.randn(BATCH, LENGTH, EMBED, requires_grad=True)
    # No rotation, because positions are tested separately.
    still = (torch.ones(BATCH, LENGTH, HEAD_DIM // 2), torch.zeros(BATCH, LENGTH, HEAD_DIM // 2))
    out, _ = layer(x, position_embeddings=still, attention_mask=additive_mask(window))
    d_out = torch.randn(out.shape)
    out.backward(d_out)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    return {
        "window": window,
        "x": numbers(x),
        "qkvWeight": numbers(torch.cat([each.weight for each in projections])),
        "qkvBias": numbers(torch.cat([each.bias for each in projections])),
        "outWeight": numbers(layer.o_proj.weight),
        "outBias": numbers(layer.o_proj.bias),
        "sinks": numbers(layer.sinks),
        "dOut": numbers(d_out),
        "out": numbers(out),
        "dx": numbers(x.grad),
        "dSinks": numbers(layer.sinks.grad),
    }


def gemma2():
    torch.manual_seed(1)
    module = nn.Module()
    module.num_key_value_groups = HEADS // KV_HEADS
    module.head_dim = HEAD_DIM
    module.train(False)
    q = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, requires_grad=True)
    k, v = (torch.randn(BATCH, KV_HEADS, LENGTH, HEAD_DIM, requires_grad=True) for _ in range(2))
    out, _ = gemma2_attention(module, q, k, v, additive_mask(LENGTH), softcap=SOFTCAP)
    out = out.transpose(1, 2)
    d_out = torch.randn(out.shape)
    out.backward(d_out)
    tensors = {"q": q, "k": k, "v": v, "dOut": d_out, "out": out, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    return {"softcap": SOFTCAP, **{name: numbers(x) for name, x in tensors.items()}}


sizes = {"batch": BATCH, "length": LENGTH, "embedDim": EMBED, "numHeads": HEADS, "numKvHeads": KV_HEADS, "headDim": HEAD_DIM}
source = f"transformers {__version__}, torch {torch.__version__}"
print(json.dumps({"source": source, "sizes": sizes, "gptOss": [gpt_oss(WINDOW), gpt_oss(LENGTH)], "gemma2": gemma2()}))
