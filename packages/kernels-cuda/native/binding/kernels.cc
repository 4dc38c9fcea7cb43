// One exported function per kernel: reads its operands and starts it.
#include <cmath>
#include <optional>

#include "binding/addon.h"
#include "binding/attention.h"
#include "binding/loop.h"
#include "binding/matmul.h"
#include "binding/rows.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"
#include "mosaic/reader.h"

namespace mosaic::cuda {

namespace {

std::optional<View> optionalView(Reader& args) {
  return args.number() != 0 ? std::optional(args.view()) : std::nullopt;
}
const View* pointer(const std::optional<View>& view) { return view ? &*view : nullptr; }

template <class Parameters>
void launchEach(Device& device, const char* kernel, const Parameters& parameters) {
  device.launch(kernel, gridFor(device, parameters.loop.extent.count), parameters);
}

template <class Parameters>
void launchRows(Device& device, const char* kernel, const Parameters& parameters) {
  device.launch(kernel, gridForRows(device, parameters.over.rows.extent.count), parameters);
}

/// For what is absent: no memory, all strides 0.
View nothingLike(const View& view) {
  View none = view;
  none.data = nullptr;
  return none;
}

void fillOp(Device& device, Reader args) {
  const View out = args.view();
  launchEach(device, "fill", FillParameters{loopOf<1>({&out}), static_cast<float>(args.number())});
}

void copyOp(Device& device, Reader args) {
  const View out = args.view(), x = args.view();
  launchEach(device, "copy", CopyParameters{loopOf<2>({&out, &x})});
}

void binaryOp(Device& device, Reader args) {
  const auto op = static_cast<BinaryOp>(args.integer());
  const View out = args.view(), a = args.view(), b = args.view();
  launchEach(device, "binary", BinaryParameters{loopOf<3>({&out, &a, &b}), op});
}

void scalarOp(Device& device, Reader args) {
  const auto op = static_cast<BinaryOp>(args.integer());
  const View out = args.view(), x = args.view();
  launchEach(device, "scalar", ScalarParameters{loopOf<2>({&out, &x}), op, static_cast<float>(args.number())});
}

void unaryOp(Device& device, Reader args) {
  const auto op = static_cast<UnaryOp>(args.integer());
  const View out = args.view(), x = args.view();
  launchEach(device, "unary", UnaryParameters{loopOf<2>({&out, &x}), op});
}

void unaryBackwardOp(Device& device, Reader args) {
  const auto op = static_cast<UnaryOp>(args.integer());
  const View dx = args.view(), x = args.view(), dy = args.view();
  launchEach(device, "unaryBackward", UnaryBackwardParameters{loopOf<3>({&dx, &x, &dy}), op});
}

Philox philoxOf(Reader& args) {
  const auto seed = static_cast<uint64_t>(args.integer());
  return {seed, static_cast<uint64_t>(args.integer())};
}

void randomOp(Device& device, Reader args) {
  const View out = args.view();
  const auto kind = static_cast<RandomKind>(args.integer());
  const auto a = static_cast<float>(args.number()), b = static_cast<float>(args.number());
  launchEach(device, "randomNumbers", RandomParameters{loopOf<1>({&out}), kind, a, b, philoxOf(args)});
}

void dropoutOp(Device& device, Reader args) {
  const View out = args.view(), x = args.view();
  const auto probability = static_cast<float>(args.number());
  const Philox philox = philoxOf(args);
  View index = nothingLike(out);
  const int64_t first = args.integer();
  for (int axis = 0; axis < out.rank; axis++) index.stride[axis] = args.integer();
  launchEach(device, "dropout", DropoutParameters{loopOf<3>({&out, &x, &index}), probability, first, philox});
}

void adamOp(Device& device, Reader args) {
  const View parameter = args.view(), first = args.view(), second = args.view(), gradient = args.view();
  const auto kind = static_cast<AdamKind>(args.integer());
  const double rate = args.number(), beta1 = args.number(), beta2 = args.number(), epsilon = args.number();
  const double decay = args.number(), correction1 = args.number(), correction2 = args.number(), mix = args.number();
  const auto number = [](double x) { return static_cast<float>(x); };
  AdamParameters p{};
  p.loop = loopOf<4>({&parameter, &first, &second, &gradient});
  p.kind = kind;
  p.rate = number(rate);
  p.beta2 = number(beta2);
  p.rest1 = number(1 - beta1);
  p.rest2 = number(1 - beta2);
  p.size = number(rate / correction1);
  p.root = number(1 / std::sqrt(correction2));
  p.epsilon = number(epsilon);
  p.keep = number(1 - rate * decay);
  p.decay = number(decay);
  p.mix = number(mix);
  p.along = number(rate * (beta1 * (1 - mix) - 1));
  launchEach(device, "adam", p);
}

void softmaxOp(Device& device, Reader args) {
  const View out = args.view(), x = args.view();
  launchRows(device, "softmax", SoftmaxParameters{rowsOf<2>({&out, &x})});
}

void softmaxBackwardOp(Device& device, Reader args) {
  const View dx = args.view(), out = args.view(), dOut = args.view();
  launchRows(device, "softmaxBackward", SoftmaxBackwardParameters{rowsOf<3>({&dx, &out, &dOut})});
}

void rowDotOp(Device& device, Reader args) {
  const View narrow = args.view(), a = args.view(), b = args.view();
  const View out = narrow.rank == a.rank ? narrow : perRow(narrow);
  RowDotParameters p{rowsOf<3>({&out, &a, &b})};
  p.over.length = a.shape[a.rank - 1];
  launchRows(device, "rowDot", p);
}

void normOp(Device& device, Reader args) {
  const View out = args.view(), x = args.view();
  const auto weight = optionalView(args), bias = optionalView(args), mean = optionalView(args);
  const View rstd = args.view(), center = mean ? *mean : nothingLike(rstd);
  NormParameters p{};
  p.over = rowsOf<4>({&out, &x, &center, &rstd});
  p.weight = operandOf(pointer(weight));
  p.bias = operandOf(pointer(bias));
  p.epsilon = static_cast<float>(args.number());
  launchRows(device, "normalize", p);
}

void normBackwardOp(Device& device, Reader args) {
  const View dx = args.view();
  const auto dWeight = optionalView(args), dBias = optionalView(args);
  const View x = args.view(), dOut = args.view();
  const auto weight = optionalView(args), mean = optionalView(args);
  const View rstd = args.view(), center = mean ? *mean : nothingLike(rstd);
  NormBackwardParameters p{};
  p.over = rowsOf<5>({&dx, &x, &dOut, &center, &rstd});
  p.weight = operandOf(pointer(weight));
  launchRows(device, "normalizeBackward", p);
  if (!dWeight && !dBias) return;
  NormColumnsParameters columns{};
  columns.over = rowsOf<4>({&x, &dOut, &center, &rstd});
  columns.dWeight = operandOf(pointer(dWeight));
  columns.dBias = operandOf(pointer(dBias));
  const auto blocks = static_cast<unsigned>((columns.over.length + 31) / 32);
  device.launch("normColumns", {{blocks}, {kThreads}, 2 * kThreads * 4}, columns);
}

void gatherRowsOp(Device& device, Reader args) {
  const View out = args.view(), table = args.view(), index = perRow(args.view());
  GatherRowsParameters p{rowsOf<2>({&out, &index}), operandOf(&table), table.shape[0], device.badIndex()};
  launchRows(device, "gatherRows", p);
}

void scatterAddRowsOp(Device& device, Reader args) {
  const View into = args.view(), x = args.view(), index = perRow(args.view());
  ScatterAddRowsParameters p{rowsOf<2>({&x, &index}), operandOf(&into), into.shape[0], device.badIndex()};
  if (p.over.rows.extent.count > 0) device.launch("scatterAddRows", gridForRows(device, p.count), p);
}

void crossEntropyOp(Device& device, Reader args) {
  const View loss = perRow(args.view()), lse = perRow(args.view()), counted = perRow(args.view());
  const View x = args.view(), target = perRow(args.view());
  CrossEntropyParameters p{};
  p.over = rowsOf<5>({&x, &loss, &lse, &counted, &target});
  p.smoothing = static_cast<float>(args.number());
  p.ignored = static_cast<float>(args.number());
  p.bad = device.badIndex();
  launchRows(device, "crossEntropy", p);
}

void crossEntropyBackwardOp(Device& device, Reader args) {
  const View dx = args.view(), x = args.view(), target = perRow(args.view());
  const View lse = perRow(args.view()), dLoss = perRow(args.view());
  CrossEntropyBackwardParameters p{};
  p.over = rowsOf<5>({&dx, &x, &target, &lse, &dLoss});
  p.smoothing = static_cast<float>(args.number());
  p.ignored = static_cast<float>(args.number());
  p.bad = device.badIndex();
  launchRows(device, "crossEntropyBackward", p);
}

void reduceOp(Device& device, Reader args) {
  const auto kind = static_cast<ReduceKind>(args.integer());
  const View out = args.view(), x = args.view();
  View keptOut = out, keptX = x, inner = x;
  keptOut.rank = keptX.rank = inner.rank = 0;
  for (int axis = 0; axis < x.rank; axis++) {
    const int own = axis - x.rank + out.rank;
    const bool goes = own < 0 || (out.shape[own] == 1 && x.shape[axis] != 1);
    View& into = goes ? inner : keptX;
    into.shape[into.rank] = x.shape[axis];
    into.stride[into.rank++] = x.stride[axis];
    if (goes) continue;
    keptOut.shape[keptOut.rank] = out.shape[own];
    keptOut.stride[keptOut.rank++] = out.stride[own];
  }
  const ReduceParameters p{loopOf<2>({&keptOut, &keptX}), loopOf<1>({&inner}), kind};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(p.kept.extent.count, INT32_MAX));
  device.launch("reduce", {{blocks}, {kThreads}, kThreads * 4}, p);
}

struct Op {
  const char* name;
  void (*start)(Device& device, Reader args);
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
    {"layerNorm", normOp},
    {"layerNormBackward", normBackwardOp},
    {"rmsNorm", normOp},
    {"rmsNormBackward", normBackwardOp},
    {"random", randomOp},
    {"dropout", dropoutOp},
    {"gatherRows", gatherRowsOp},
    {"scatterAddRows", scatterAddRowsOp},
    {"crossEntropy", crossEntropyOp},
    {"crossEntropyBackward", crossEntropyBackwardOp},
    {"adam", adamOp},
};

// On return, scratch[0] is 0, or 1 if the device has failed and nothing was started.
napi_value launch(napi_env env, napi_callback_info info) {
  void* data;
  napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data);
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  addon.scratch[0] = 1;
  if (device.failure()) return nullptr;
  device.enter();
  try {
    static_cast<const Op*>(data)->start(device, Reader(addon.scratch + 1));
    addon.scratch[0] = 0;
  } catch (const CallError& error) {
    const Failure failure = device.explain(error);
    device.fail(failure.code(), failure.what());
  } catch (const Failure& failure) {
    device.fail(failure.code(), failure.what());
  } catch (const std::exception& error) {
    device.fail(MOSAIC_FAILURE_DEVICE, error.what());
  }
  return nullptr;
}

}  // namespace

void exportKernels(napi_env env, napi_value exports) {
  for (const Op& op : kOps) {
    napi_value function;
    napi_create_function(env, op.name, NAPI_AUTO_LENGTH, launch, const_cast<Op*>(&op), &function);
    napi_set_named_property(env, exports, op.name, function);
  }
}

}  // namespace mosaic::cuda
