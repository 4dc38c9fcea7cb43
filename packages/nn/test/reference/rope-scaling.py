"""Writes rope-scaling.json: inverse frequencies and attention factors of Hugging Face transformers, which compute in float32.

    pip install torch==2.13.0 transformers==5.18.0
    python rope-scaling.py > rope-scaling.json
"""

import json

import torch
from transformers import LlamaConfig, __version__
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# (head size, base, Mosaic's scaling and options, Hugging Face's rope_parameters, sequence length)
CASES = [
    (64, 10_000, "linear", {"factor": 8}, {"factor": 8.0}, None),
    (256, 1_000_000, "linear", {"factor": 8}, {"factor": 8.0}, None),
    (64, 10_000, "dynamicNtk", {"factor": 2, "originalLength": 2048}, {"factor": 2.0}, 1000),
    (64, 10_000, "dynamicNtk", {"factor": 2, "originalLength": 2048}, {"factor": 2.0}, 2048),
    (64, 10_000, "dynamicNtk", {"factor": 2, "originalLength": 2048}, {"factor": 2.0}, 10_001),
    (128, 1_000_000, "yarn", {"factor": 4, "originalLength": 32_768}, {"factor": 4.0, "original_max_position_embeddings": 32_768}, None),
    (
        64,
        150_000,
        "yarn",
        {"factor": 32, "originalLength": 4096, "truncate": False},
        {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
        None,
    ),
    (
        64,
        10_000,
        "yarn",
        {"factor": 40, "originalLength": 4096, "mscale": 1, "mscaleAllDim": 0.5, "betaFast": 16, "betaSlow": 2},
        {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16, "beta_slow": 2},
        None,
    ),
    (
        32,
        10_000,
        "yarn",
        {"factor": 2, "originalLength": 4, "attentionFactor": 1.25},
        {"factor": 2.0, "original_max_position_embeddings": 4, "attention_factor": 1.25},
        None,
    ),
    (
        128,
        500_000,
        "llama3",
        {"factor": 8, "originalLength": 8192},
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        None,
    ),
    (
        64,
        500_000,
        "llama3",
        {"factor": 32, "originalLength": 8192, "lowFreqFactor": 2, "highFreqFactor": 16},
        {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 16.0, "original_max_position_embeddings": 8192},
        None,
    ),
]

TYPES = {"dynamicNtk": "dynamic"}


def compute(head_dim, base, scaling, options, parameters, length):
    rope_type = TYPES.get(scaling, scaling)
    original = options.get("originalLength", 2048)
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=original if scaling == "dynamicNtk" else original * int(options["factor"]),
        rope_parameters={"rope_type": rope_type, "rope_theta": float(base), **parameters},
    )
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=length)
    return {
        "scaling": scaling,
        "options": options,
        "headDim": head_dim,
        "base": base,
        **({} if length is None else {"sequenceLength": length}),
        "inverseFrequencies": [float(f"{each:.9g}") for each in frequencies.tolist()],
        "attentionFactor": attention_factor,
    }


lines = ",\n".join("    " + json.dumps(compute(*case)) for case in CASES)
print(f'{{\n  "source": "transformers {__version__}, torch {torch.__version__}",\n  "cases": [\n{lines}\n  ]\n}}')
