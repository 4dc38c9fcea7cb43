// One exported function per kernel: reads its operands and submits the work.
#include <cstdio>
#include <optional>

#include "attention/attention.h"
#include "binding/addon.h"
#include "mosaic/reader.h"

namespace mosaic {

namespace {

/// A tile that owns its lists: the work outlives the call.
struct OwnedTile {
  std::vector<Span> q, k;
  std::vector<Slice> mask;
  float scale;

  explicit OwnedTile(Reader& args)
      : q(args.spans()), k(args.spans()), mask(args.slices()), scale(static_cast<float>(args.number())) {}
  Tile tile() const { return {q, k, mask, scale}; }
};

std::optional<View> optionalView(Reader& args) {
  return args.number() != 0 ? std::optional(args.view()) : std::nullopt;
}

const View* pointer(const std::optional<View>& view) { return view ? &*view : nullptr; }

void attendOp(Device& device, Reader args) {
  const TensorView out = args.tensor(), lse = args.tensor(), q = args.tensor(), k = args.tensor(), v = args.tensor();
  enqueue(device.stream, "attend", [=, &device, tile = OwnedTile(args)] {
    attend({q, k, v, out, lse, tile.tile()}, device.isa, device.pool());
  });
}

void attendBackwardOp(Device& device, Reader args) {
  const TensorView dq = args.tensor(), dk = args.tensor(), dv = args.tensor(), q = args.tensor(), k = args.tensor();
  const TensorView v = args.tensor(), dOut = args.tensor(), lse = args.tensor(), delta = args.tensor();
  enqueue(device.stream, "attendBackward", [=, &device, tile = OwnedTile(args)] {
    attendBackward({q, k, v, dOut, lse, delta, dq, dk, dv, tile.tile()}, device.isa, device.pool());
  });
}

void mergeOp(Device& device, Reader args) {
  const StateView into{args.tensor(), args.tensor()}, from{args.tensor(), args.tensor()};
  enqueue(device.stream, "merge", [=, &device] { mergeState(into, from, device.pool()); });
}

void rowDotOp(Device& device, Reader args) {
  const View out = args.view(), a = args.view(), b = args.view();
  enqueue(device.stream, "rowDot", [=, &device] { device.kernels.rowDot(out, a, b, device.pool()); });
}

void fillOp(Device& device, Reader args) {
  const View out = args.view();
  const float value = static_cast<float>(args.number());
  enqueue(device.stream, "fill", [=, &device] { device.kernels.fill(out, value, device.pool()); });
}

void copyOp(Device& device, Reader args) {
  const View out = args.view(), x = args.view();
  enqueue(device.stream, "copy", [=, &device] { device.kernels.copy(out, x, device.pool()); });
}

void binaryOp(Device& device, Reader args) {
  const auto op = static_cast<BinaryOp>(args.integer());
  const View out = args.view(), a = args.view(), b = args.view();
  enqueue(device.stream, "binary", [=, &device] { device.kernels.binary(op, out, a, b, device.pool()); });
}

void scalarOp(Device& device, Reader args) {
  const auto op = static_cast<BinaryOp>(args.integer());
  const View out = args.view(), x = args.view();
  const float value = static_cast<float>(args.number());
  enqueue(device.stream, "scalar", [=, &device] { device.kernels.scalar(op, out, x, value, device.pool()); });
}

void unaryOp(Device& device, Reader args) {
  const auto op = static_cast<UnaryOp>(args.integer());
  const View out = args.view(), x = args.view();
  enqueue(device.stream, "unary", [=, &device] { device.kernels.unary(op, out, x, device.pool()); });
}

void unaryBackwardOp(Device& device, Reader args) {
  const auto op = static_cast<UnaryOp>(args.integer());
  const View dx = args.view(), x = args.view(), dy = args.view();
  enqueue(device.stream, "unaryBackward",
          [=, &device] { device.kernels.unaryBackward(op, dx, x, dy, device.pool()); });
}

void reduceOp(Device& device, Reader args) {
  const auto kind = static_cast<ReduceKind>(args.integer());
  const View out = args.view(), x = args.view();
  enqueue(device.stream, "reduce", [=, &device] { device.kernels.reduce(kind, out, x, device.pool()); });
}

void matmulOp(Device& device, Reader args) {
  const View out = args.view(), a = args.view(), b = args.view();
  const bool accumulate = args.number() != 0;
  enqueue(device.stream, "matmul", [=, &device] { device.kernels.matmul(out, a, b, accumulate, device.pool()); });
}

void softmaxOp(Device& device, Reader args) {
  const View out = args.view(), x = args.view();
  enqueue(device.stream, "softmax", [=, &device] { device.kernels.softmax(out, x, device.pool()); });
}

void softmaxBackwardOp(Device& device, Reader args) {
  const View dx = args.view(), out = args.view(), dOut = args.view();
  enqueue(device.stream, "softmaxBackward",
          [=, &device] { device.kernels.softmaxBackward(dx, out, dOut, device.pool()); });
}

void normForward(Device& device, Reader args, const char* name) {
  const View out = args.view(), x = args.view();
  const auto weight = optionalView(args), bias = optionalView(args), mean = optionalView(args);
  const View rstd = args.view();
  const float epsilon = static_cast<float>(args.number());
  enqueue(device.stream, name, [=, &device] {
    device.kernels.norm(out, x, {pointer(weight), pointer(bias), epsilon}, {pointer(mean), &rstd}, device.pool());
  });
}

void normBackward(Device& device, Reader args, const char* name) {
  const View dx = args.view();
  const auto dWeight = optionalView(args), dBias = optionalView(args);
  const View x = args.view(), dOut = args.view();
  const auto weight = optionalView(args), mean = optionalView(args);
  const View rstd = args.view();
  enqueue(device.stream, name, [=, &device] {
    const NormGrads grads{&dx, pointer(dWeight), pointer(dBias)};
    device.kernels.normBackward(grads, x, dOut, pointer(weight), {pointer(mean), &rstd}, device.pool());
  });
}

void layerNormOp(Device& device, Reader args) { normForward(device, args, "layerNorm"); }
void layerNormBackwardOp(Device& device, Reader args) { normBackward(device, args, "layerNormBackward"); }
void rmsNormOp(Device& device, Reader args) { normForward(device, args, "rmsNorm"); }
void rmsNormBackwardOp(Device& device, Reader args) { normBackward(device, args, "rmsNormBackward"); }

void randomOp(Device& device, Reader args) {
  const View out = args.view();
  RandomSpec spec;
  spec.kind = static_cast<RandomKind>(args.integer());
  spec.a = static_cast<float>(args.number());
  spec.b = static_cast<float>(args.number());
  spec.seed = static_cast<uint64_t>(args.integer());
  spec.stream = static_cast<uint64_t>(args.integer());
  enqueue(device.stream, "random", [=, &device] { device.kernels.random(out, spec, device.pool()); });
}

void dropoutOp(Device& device, Reader args) {
  const View out = args.view(), x = args.view();
  DropoutSpec spec;
  spec.probability = static_cast<float>(args.number());
  spec.seed = static_cast<uint64_t>(args.integer());
  spec.stream = static_cast<uint64_t>(args.integer());
  spec.offset = args.integer();
  for (int axis = 0; axis < out.rank; axis++) spec.strides[axis] = args.integer();
  enqueue(device.stream, "dropout", [=, &device] { device.kernels.dropout(out, x, spec, device.pool()); });
}

/// Fails the stream for an index that names none of `count`.
void checkIndex(const BadIndex& bad, const char* name, int64_t count) {
  if (!bad.found) return;
  char message[160];
  std::snprintf(message, sizeof message, "%s: expected whole numbers from 0 to %lld, received %g", name,
                static_cast<long long>(count - 1), static_cast<double>(bad.value));
  throw Failure(MOSAIC_FAILURE_DEVICE, message);
}

void gatherRowsOp(Device& device, Reader args) {
  const View out = args.view(), table = args.view(), index = args.view();
  enqueue(device.stream, "gatherRows", [=, &device] {
    checkIndex(device.kernels.gatherRows(out, table, index, device.pool()), "gatherRows", table.shape[0]);
  });
}

void scatterAddRowsOp(Device& device, Reader args) {
  const View into = args.view(), x = args.view(), index = args.view();
  enqueue(device.stream, "scatterAddRows", [=, &device] {
    checkIndex(device.kernels.scatterAddRows(into, x, index, device.pool()), "scatterAddRows", into.shape[0]);
  });
}

CrossEntropySpec crossEntropySpec(Reader& args) {
  const float smoothing = static_cast<float>(args.number());
  return {smoothing, static_cast<float>(args.number())};
}

void crossEntropyOp(Device& device, Reader args) {
  const View loss = args.view(), lse = args.view(), counted = args.view(), x = args.view(), target = args.view();
  const CrossEntropySpec spec = crossEntropySpec(args);
  enqueue(device.stream, "crossEntropy", [=, &device] {
    checkIndex(device.kernels.crossEntropy({&loss, &lse, &counted}, x, target, spec, device.pool()), "crossEntropy",
               x.shape[x.rank - 1]);
  });
}

void crossEntropyBackwardOp(Device& device, Reader args) {
  const View dx = args.view(), x = args.view(), target = args.view(), lse = args.view(), dLoss = args.view();
  const CrossEntropySpec spec = crossEntropySpec(args);
  enqueue(device.stream, "crossEntropyBackward", [=, &device] {
    checkIndex(device.kernels.crossEntropyBackward(dx, {&x, &target, &lse}, dLoss, spec, device.pool()),
               "crossEntropyBackward", x.shape[x.rank - 1]);
  });
}

void adamOp(Device& device, Reader args) {
  const View parameter = args.view(), first = args.view(), second = args.view(), gradient = args.view();
  AdamStep step;
  step.kind = static_cast<AdamKind>(args.integer());
  for (double* each : {&step.rate, &step.beta1, &step.beta2, &step.epsilon, &step.decay, &step.correction1,
                       &step.correction2, &step.mix}) {
    *each = args.number();
  }
  enqueue(device.stream, "adam", [=, &device] {
    device.kernels.adam({&parameter, &first, &second}, gradient, step, device.pool());
  });
}

struct Op {
  const char* name;
  void (*submit)(Device& device, Reader args);
};

constexpr Op kOps[] = {
    {"attend", attendOp},
    {"attendBackward", attendBackwardOp},
    {"merge", mergeOp},
    {"rowDot", rowDotOp},
    {"fill", fillOp},
    {"copy", copyOp},
    {"binary", binaryOp},
    {"scalar", scalarOp},
    {"unary", unaryOp},
    {"unaryBackward", unaryBackwardOp},
    {"reduce", reduceOp},
    {"matmul", matmulOp},
    {"softmax", softmaxOp},
    {"softmaxBackward", softmaxBackwardOp},
    {"layerNorm", layerNormOp},
    {"layerNormBackward", layerNormBackwardOp},
    {"rmsNorm", rmsNormOp},
    {"rmsNormBackward", rmsNormBackwardOp},
    {"random", randomOp},
    {"dropout", dropoutOp},
    {"gatherRows", gatherRowsOp},
    {"scatterAddRows", scatterAddRowsOp},
    {"crossEntropy", crossEntropyOp},
    {"crossEntropyBackward", crossEntropyBackwardOp},
    {"adam", adamOp},
};

// On return, scratch[0] is 0, or 1 if the stream has failed and nothing was submitted.
napi_value launch(napi_env env, napi_callback_info info) {
  void* data;
  napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data);
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  if (device.stream.failure()) {
    addon.scratch[0] = 1;
    return nullptr;
  }
  try {
    static_cast<const Op*>(data)->submit(device, Reader(addon.scratch + 1));
    addon.scratch[0] = 0;
    return nullptr;
  } catch (...) {
    return throwCurrentException(env);
  }
}

}  // namespace

void exportKernels(napi_env env, napi_value exports) {
  for (const Op& op : kOps) {
    napi_value function;
    napi_create_function(env, op.name, NAPI_AUTO_LENGTH, launch, const_cast<Op*>(&op), &function);
    napi_set_named_property(env, exports, op.name, function);
  }
}

}  // namespace mosaic
