"""Creates the reference results for the tests of @mosaic/models. The tests do not need Python.

    python make.py        with torch 2.13.0, transformers 5.18.0, tokenizers 0.23.2

Weights are computed from their names (`weight_of`, and weights.ts in this folder), exact in bfloat16. The expected
values are those of the model entirely in float64: transformers casts to float32 in norms, rotary embeddings and the
softmax, which `float64_casts` prevents.
"""

import contextlib
import json
import pathlib
import shutil

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import modeling_rope_utils

HERE = pathlib.Path(__file__).parent
VOCAB, BATCH, LENGTH, PROMPT, STEPS = 64, 2, 21, 9, 200

common = dict(
    vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, pad_token_id=None, bos_token_id=1, eos_token_id=2,
)
yarn = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=128)
llama3 = dict(
    rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
gemma3_rope = dict(
    full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
    sliding_attention=dict(rope_type="default", rope_theta=1e4),
)
T = transformers
CASES = {
    "llama2": T.LlamaConfig(**common | dict(num_key_value_heads=4, rms_norm_eps=1e-5)),
    "llama3": T.LlamaConfig(**common | dict(eos_token_id=[2, 3]), rope_parameters=llama3, rms_norm_eps=1e-5),
    "llama-bias": T.LlamaConfig(**common, attention_bias=True, mlp_bias=True, head_dim=16, tie_word_embeddings=True),
    "mistral": T.MistralConfig(**common, sliding_window=8),
    "mistral-full": T.MistralConfig(**common, sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "qwen2": T.Qwen2Config(**common, rope_parameters=yarn, tie_word_embeddings=True),
    "qwen2-window": T.Qwen2Config(**common, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": T.Qwen3Config(**common, head_dim=16, tie_word_embeddings=True),
    "gemma2": T.Gemma2Config(
        **common, head_dim=16, query_pre_attn_scalar=24, sliding_window=8, attn_logit_softcapping=5.0, final_logit_softcapping=4.0
    ),
    "gemma3": T.Gemma3TextConfig(
        **common | dict(num_hidden_layers=3), head_dim=16, query_pre_attn_scalar=24, sliding_window=8, sliding_window_pattern=3,
        rope_parameters=gemma3_rope,
    ),
}
GREEDY = ["llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"]


def hashed(name: str, count: int) -> np.ndarray:
    """Returns integers from -128 to 127: the finalizer of MurmurHash3 of index plus FNV-1a hash of the name."""
    seed = 2166136261
    for byte in name.encode():
        seed = ((seed ^ byte) * 16777619) & 0xFFFFFFFF
    h = (np.arange(count, dtype=np.uint64) + seed) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = ((h ^ (h >> np.uint64(shift))) * np.uint64(factor)) & 0xFFFFFFFF
    h ^= h >> np.uint64(16)
    return (h >> np.uint64(24)).astype(np.int64) - 128


def weight_of(name: str, shape, has_offset: bool) -> torch.Tensor:
    k = hashed(name, int(np.prod(shape))).reshape(tuple(shape))
    if "norm" in name:
        values = np.floor(k / 8) / 128 + (0 if has_offset else 1)
    else:
        values = k * 2.0 ** -(10 if "embed_tokens" in name else 9)
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


class Float64Torch:
    """torch, with float32 replaced by float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def float64_casts(model_class):
    import sys

    modules = [sys.modules[model_class.__module__], modeling_rope_utils]
    narrow = torch.Tensor.float
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    for module in modules:
        module.torch = Float64Torch()
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.Tensor.float = narrow
        for module in modules:
            module.torch = torch


def build(config, dtype):
    model_class = T.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    config = type(config).from_dict(config.to_dict())
    config._attn_implementation = "eager"
    model = model_class(config).eval().to(dtype)
    has_offset = config.model_type.startswith("gemma")
    for name, parameter in model.named_parameters():
        parameter.data = weight_of(name, parameter.shape, has_offset).to(dtype)
    model.tie_weights()
    model.generation_config.eos_token_id = None
    return model


def logits_of(config, tokens, dtype):
    model_class = T.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.no_grad(), float64_casts(model_class) if dtype == torch.float64 else contextlib.nullcontext():
        return build(config, dtype)(tokens, use_cache=False).logits.double()


def greedy_of(config, prompt):
    """Returns the greedy ids of transformers in float32, each step's top-2 margin in float64, and the float32 error."""
    model = build(config, torch.float32)
    out = model.generate(prompt, do_sample=False, max_new_tokens=STEPS, min_new_tokens=STEPS, pad_token_id=0)
    start = prompt.shape[1] - 1
    exact = logits_of(config, out, torch.float64)[0, start:-1]
    narrow = logits_of(config, out, torch.float32)[0, start:-1]
    top = exact.topk(2, dim=-1).values
    tensors = {"ids": out[0, start + 1 :].double(), "margins": top[:, 0] - top[:, 1]}
    return tensors, (narrow - exact).abs().max().item()


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def make_models(further):
    tokens = token_ids()
    expected, models = {"tokens": tokens.double(), **further}, {}
    for name, config in CASES.items():
        exact = logits_of(config, tokens, torch.float64)
        error = {d: (logits_of(config, tokens, getattr(torch, d)) - exact).abs().max().item() for d in ("float32", "bfloat16")}
        model = build(config, torch.float32)
        shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
        if config.tie_word_embeddings:
            shapes.pop("lm_head.weight", None)
        model.config.save_pretrained(HERE / "build")
        saved = json.loads((HERE / "build" / "config.json").read_text())
        models[name] = dict(config=saved, shapes=shapes, errors=error)
        expected[f"{name}.logits"] = exact.contiguous()
        print(name, error, exact.abs().max().item())
        if name in GREEDY:
            tensors, models[name]["errors"]["generated"] = greedy_of(config, tokens[:1, :PROMPT])
            expected |= {f"{name}.{kind}": tensor.contiguous() for kind, tensor in tensors.items()}
            print("  distinct ids", len(set(tensors["ids"].tolist())), "min margin", tensors["margins"].min().item())
    shutil.rmtree(HERE / "build")
    save_file(expected, HERE / "models.safetensors")
    for path in HERE.glob("**/*.safetensors"):
        path.chmod(0o644)
    write_json(HERE / "models.json", models)


def make_dynamic():
    """Writes results of rope_type "dynamic", whose frequencies depend on the length of a call beyond 16 tokens."""
    rope = dict(rope_type="dynamic", rope_theta=1e4, factor=4.0)
    config = T.LlamaConfig(**common | dict(max_position_embeddings=16), rope_parameters=rope)
    tokens = token_ids()[:1]
    model = build(config, torch.float32)
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    model.config.save_pretrained(HERE / "build")
    saved = json.loads((HERE / "build" / "config.json").read_text())
    shutil.rmtree(HERE / "build")
    logits, errors = {}, []
    for length in (12, 16, 17, LENGTH):
        # A new model for each length, because the frequencies of a model remain those of its longest sequence.
        exact, narrow = (logits_of(config, tokens[:, :length], each)[0, -1] for each in (torch.float64, torch.float32))
        logits[length] = exact.tolist()
        errors.append((narrow - exact).abs().max().item())
    generated = {}
    for length in (PROMPT, LENGTH):
        prompt = tokens[:, :length]
        out = build(config, torch.float32).generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30, return_dict_in_generate=True,
            output_logits=True, pad_token_id=0,
        )
        top = torch.stack(out.logits, 1)[0].topk(2, dim=-1).values
        margin = (top[:, 0] - top[:, 1]).min().item()
        print("dynamic", length, "min margin", margin)
        assert margin > 10 * max(errors)
        generated[length] = out.sequences[0, length:].tolist()
    write_json(HERE / "dynamic.json", dict(
        model=dict(config=saved, shapes=shapes, errors=dict(float32=max(errors))), logits=logits, generated=generated
    ))


def make_folder():
    """Writes a folder with save_pretrained, random weights in several files. Its logits are in models.safetensors."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, head_dim=8)
    model = T.Qwen3ForCausalLM(T.Qwen3Config(**common | sizes, initializer_range=0.3)).eval().to(torch.bfloat16)
    model.generation_config = T.GenerationConfig(do_sample=True, temperature=0.6, top_k=20, top_p=0.95, eos_token_id=[2, 5])
    shutil.rmtree(HERE / "saved", ignore_errors=True)
    model.save_pretrained(HERE / "saved", max_shard_size="3KB")
    config = model.config
    with torch.no_grad(), float64_casts(type(model)):
        exact = T.Qwen3ForCausalLM(config).eval().double()
        exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
        logits = exact(token_ids(), use_cache=False).logits.contiguous()
    with torch.no_grad():
        error = (model.float()(token_ids(), use_cache=False).logits.double() - logits).abs().max()
    return {"saved.logits": logits, "saved.float32Error": error.reshape(1)}


def token_ids():
    return torch.from_numpy((hashed("tokens", BATCH * LENGTH) + 128) % VOCAB).reshape(BATCH, LENGTH)


if __name__ == "__main__":
    make_models(make_folder())
    make_dynamic()
