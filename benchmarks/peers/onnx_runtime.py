"""onnxruntime baseline on the CPU, in float32. Requests are those of `serve_runs`.

    {"op": "prepare", "what": "decode", "problem": D}   GroupQueryAttention, the cache updated in place
    {"op": "prepare", "what": "linear", "problem": L}   MatMul by a constant weight

D: numHeads, numKvHeads, queries, n, d. L: m, n, k.
"""

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from serve import serve_runs


def session(nodes, inputs, outputs, initializers=()):
    value = lambda name, kind: helper.make_tensor_value_info(name, kind, None)
    graph = helper.make_graph(
        nodes, "peer", [value(*each) for each in inputs], [value(*each) for each in outputs], list(initializers)
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def draw(*shape):
    return numpy.random.default_rng(0).standard_normal(shape, dtype=numpy.float32)


def decode(problem):
    heads, kv_heads, head_dim = problem["numHeads"], problem["numKvHeads"], problem["d"]
    queries, keys = problem["queries"], problem["n"]
    floats = ["query", "key", "value", "past_key", "past_value"]
    node = helper.make_node(
        "GroupQueryAttention",
        [*floats, "seqlens_k", "total_sequence_length"],
        ["out", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=kv_heads,
    )
    inputs = [(name, TensorProto.FLOAT) for name in floats]
    inputs += [("seqlens_k", TensorProto.INT32), ("total_sequence_length", TensorProto.INT32)]
    outputs = [(name, TensorProto.FLOAT) for name in ("out", "present_key", "present_value")]
    run = session([node], inputs, outputs)
    binding = run.io_binding()
    shapes = {"query": heads, "key": kv_heads, "value": kv_heads}
    for name, count in shapes.items():
        binding.bind_cpu_input(name, draw(1, queries, count * head_dim))
    for name in ("key", "value"):
        cache = onnxruntime.OrtValue.ortvalue_from_numpy(draw(1, kv_heads, keys, head_dim))
        binding.bind_ortvalue_input(f"past_{name}", cache)
        binding.bind_ortvalue_output(f"present_{name}", cache)
    binding.bind_cpu_input("seqlens_k", numpy.array([keys - 1], dtype=numpy.int32))
    binding.bind_cpu_input("total_sequence_length", numpy.array([keys], dtype=numpy.int32))
    binding.bind_output("out")
    return lambda: run.run_with_iobinding(binding)


def linear(problem):
    m, n, k = problem["m"], problem["n"], problem["k"]
    weight = numpy_helper.from_array(draw(k, n), "weight")
    node = helper.make_node("MatMul", ["x", "weight"], ["y"])
    run = session([node], [("x", TensorProto.FLOAT)], [("y", TensorProto.FLOAT)], [weight])
    binding = run.io_binding()
    binding.bind_cpu_input("x", draw(m, k))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(draw(m, n)))
    return lambda: run.run_with_iobinding(binding)


PREPARE = {"decode": decode, "linear": linear}


def prepare(request):
    return PREPARE[request["what"]](request["problem"])


if __name__ == "__main__":
    serve_runs(prepare, cold=True)
