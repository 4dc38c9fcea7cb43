// One exported function per kernel of the schema: reads its arguments and launches it.
#include "mosaic/kernel_arguments.h"

#include <cmath>
#include <string>

#include "binding/addon.h"
#include "binding/kernels.h"
#include "binding/loop.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"

namespace mosaic::cuda {

namespace {

template <class Parameters>
void launchElementwise(Device& device, const char* kernel, const Parameters& parameters) {
  device.launch(kernel, makeGrid(device, parameters.loop.extent.count), parameters);
}

/// Launches a kernel based on mapElements. A thread processes vectors if the operands allow it.
template <class Parameters>
void launchMap(Device& device, const char* kernel, const Parameters& parameters) {
  const auto& loop = parameters.loop;
  device.launch(kernel, makeGrid(device, loop.extent.count / (loop.isVectorized ? kVectorLength : 1)), parameters);
}

/// Returns the loop of a kernel whose results do not depend on the order of the elements.
template <int N>
Loop<N> makeUnorderedLoop(const View* const (&views)[N]) {
  return makeLoop(views, LoopOrder::Memory);
}

template <class Parameters>
void launchRows(Device& device, const char* kernel, const Parameters& parameters) {
  device.launch(kernel, makeRowGrid(device, parameters.layout.rows.extent.count), parameters);
}

/// Returns a placeholder for an absent view: no memory, and all strides 0.
View makeAbsentView(const View& view) {
  View absentView = view;
  absentView.data = nullptr;
  return absentView;
}

void fillOp(Device& device, const FillArguments& args) {
  launchMap(device, "fill", FillParameters{makeUnorderedLoop<1>({&args.out}), args.value});
}

}  // namespace

void copyOp(Device& device, const CopyArguments& args) {
  launchMap(device, "copy", CopyParameters{makeUnorderedLoop<2>({&args.out, &args.x})});
}

void binaryOp(Device& device, const BinaryArguments& args) {
  launchMap(device, "binary", BinaryParameters{makeUnorderedLoop<3>({&args.out, &args.a, &args.b}), args.op});
}

namespace {

void scalarOp(Device& device, const ScalarArguments& args) {
  launchMap(device, "scalar", ScalarParameters{makeUnorderedLoop<2>({&args.out, &args.x}), args.op, args.value});
}

void unaryOp(Device& device, const UnaryArguments& args) {
  launchMap(device, "unary", UnaryParameters{makeUnorderedLoop<2>({&args.out, &args.x}), args.op});
}

void gateOp(Device& device, const GateArguments& args) {
  if (!args.activation) return binaryOp(device, {BinaryOp::Mul, args.out, args.gate, args.x});
  launchMap(device, "gate", GateParameters{makeUnorderedLoop<3>({&args.out, &args.gate, &args.x}), *args.activation});
}

/// Returns the first or the second feature of each pair.
View selectHalf(const View& x, bool interleaved, int64_t index) {
  View halfView = x;
  const int last = x.rank - 1;
  halfView.shape[last] = x.shape[last] / 2;
  halfView.stride[last] = x.stride[last] * (interleaved ? 2 : 1);
  const int64_t step = x.stride[last] * (interleaved ? 1 : halfView.shape[last]);
  halfView.data = static_cast<char*>(x.data) + index * step * dtypeBytes(x.dtype);
  return halfView;
}

void rotaryOp(Device& device, const RotaryArguments& args) {
  const auto& [cos, sin, interleaved, inverse] = args.angles;
  const View out[2] = {selectHalf(args.out, interleaved, 0), selectHalf(args.out, interleaved, 1)};
  const View x[2] = {selectHalf(args.x, interleaved, 0), selectHalf(args.x, interleaved, 1)};
  launchElementwise(
      device, "rotary",
      RotaryParameters{makeUnorderedLoop<6>({&out[0], &out[1], &x[0], &x[1], &cos, &sin}), inverse ? -1.f : 1.f});
}

void unaryBackwardOp(Device& device, const UnaryBackwardArguments& args) {
  launchMap(device, "unaryBackward",
            UnaryBackwardParameters{makeUnorderedLoop<3>({&args.dx, &args.x, &args.dy}), args.op});
}

/// Activations and gates run as separate passes: cuBLASLt supports only tanh gelu, and the fallback kernel none.
void linearOp(Device& device, const LinearArguments& args) {
  const auto& [bias, activation, gate, preActivation] = args.epilogue;
  const bool savesPreActivation = preActivation.data != nullptr;
  const View& sums = savesPreActivation ? static_cast<const View&>(preActivation) : args.out;
  if (!bias.data || !matmulWithBias(device, {sums, args.a, args.b, false}, bias)) {
    if (bias.data) copyOp(device, {sums, bias});
    matmulOp(device, {sums, args.a, args.b, bias.data != nullptr});
  }
  if (gate.data) {
    gateOp(device, {activation, args.out, gate, sums});
  } else if (activation) {
    unaryOp(device, {*activation, args.out, sums});
  } else if (savesPreActivation) {
    copyOp(device, {args.out, sums});
  }
}

void randomOp(Device& device, const RandomArguments& args) {
  const auto& [kind, a, b, seed, stream] = args.spec;
  launchElementwise(device, "randomNumbers", RandomParameters{makeLoop<1>({&args.out}), kind, a, b, {seed, stream}});
}

void dropoutOp(Device& device, const DropoutArguments& args) {
  const auto& [out, x, spec] = args;
  View index = makeAbsentView(out);
  for (int axis = 0; axis < out.rank; axis++) index.stride[axis] = spec.strides.stride[axis];
  const Philox philox{spec.seed, spec.stream};
  const DropoutParameters p{makeUnorderedLoop<3>({&out, &x, &index}), spec.probability, spec.offset, philox};
  launchElementwise(device, "dropout", p);
}

void adamOp(Device& device, const AdamArguments& args) {
  const auto& [state, gradient, step] = args;
  const auto toFloat = [](double x) { return static_cast<float>(x); };
  AdamParameters p{};
  p.loop = makeUnorderedLoop<4>({&state.parameter, &state.first, &state.second, &gradient});
  p.kind = step.kind;
  p.rate = toFloat(step.rate);
  p.beta1 = toFloat(step.beta1);
  p.beta2 = toFloat(step.beta2);
  p.oneMinusBeta1 = toFloat(1 - step.beta1);
  p.oneMinusBeta2 = toFloat(1 - step.beta2);
  p.stepSize = toFloat(step.rate / step.correction1);
  p.inverseRootCorrection = toFloat(1 / std::sqrt(step.correction2));
  p.epsilon = toFloat(step.epsilon);
  p.decayFactor = toFloat(1 - step.rate * step.decay);
  p.decay = toFloat(step.decay);
  p.mix = toFloat(step.mix);
  p.updateScale = toFloat(step.rate * (step.beta1 * (1 - step.mix) - 1));
  launchElementwise(device, "adam", p);
}

void softmaxOp(Device& device, const SoftmaxArguments& args) {
  launchRows(device, "softmax", SoftmaxParameters{rowsOf<2>({&args.out, &args.x})});
}

void softmaxBackwardOp(Device& device, const SoftmaxBackwardArguments& args) {
  launchRows(device, "softmaxBackward", SoftmaxBackwardParameters{rowsOf<3>({&args.dx, &args.out, &args.dOut})});
}

void rowDotOp(Device& device, const RowDotArguments& args) {
  const auto& [narrow, a, b] = args;
  const View out = narrow.rank == a.rank ? narrow : asRows(narrow);
  launchRows(device, "rowDot", RowDotParameters{rowsOf<3>({&out, &a, &b})});
}

/// Whether a norm's weight or bias is absent or suits vector loads.
bool isAbsentOrVector(const View& view) { return !view.data || hasVectorRows(view); }

/// Returns the mean, or an absent view for RMSNorm, which has no mean.
View selectCenter(const NormStats& stats) {
  if (stats.mean.data) return stats.mean;
  return makeAbsentView(stats.rstd);
}

void layerNormOp(Device& device, const LayerNormArguments& args) {
  const auto& [out, x, norm, stats] = args;
  const View center = selectCenter(stats);
  cuda::NormParameters p{};
  p.layout = rowsOf<4>({&out, &x, &center, &stats.rstd});
  p.weight = makeOperand(norm.weight);
  p.bias = makeOperand(norm.bias);
  p.layout.isVectorized = p.layout.isVectorized && isAbsentOrVector(norm.weight) && isAbsentOrVector(norm.bias);
  p.epsilon = norm.epsilon;
  launchRows(device, "normalize", p);
}

void rmsNormOp(Device& device, const RmsNormArguments& args) { layerNormOp(device, args); }

void layerNormBackwardOp(Device& device, const LayerNormBackwardArguments& args) {
  const auto& [grads, x, dOut, weight, stats] = args;
  const View center = selectCenter(stats);
  NormBackwardParameters p{};
  p.layout = rowsOf<5>({&grads.dx, &x, &dOut, &center, &stats.rstd});
  p.weight = makeOperand(weight);
  p.layout.isVectorized = p.layout.isVectorized && isAbsentOrVector(weight);
  launchRows(device, "normalizeBackward", p);
  if (!grads.dWeight.data && !grads.dBias.data) return;
  NormColumnsParameters columns{};
  columns.layout = rowsOf<4>({&x, &dOut, &center, &stats.rstd});
  columns.dWeight = makeOperand(grads.dWeight);
  columns.dBias = makeOperand(grads.dBias);
  const auto blocks = static_cast<unsigned>((columns.layout.length + 31) / 32);
  device.launch("normColumns", {{blocks}, {kNormColumnsThreads}, 2 * kNormColumnsThreads * 4}, columns);
}

void rmsNormBackwardOp(Device& device, const RmsNormBackwardArguments& args) { layerNormBackwardOp(device, args); }

void gatherRowsOp(Device& device, const GatherRowsArguments& args) {
  const auto& [out, table, rows] = args;
  const View index = asRows(rows);
  GatherRowsParameters p{rowsOf<2>({&out, &index}), makeOperand(table), table.shape[0], device.badIndex()};
  p.layout.isVectorized = p.layout.isVectorized && hasVectorRows(table);
  launchRows(device, "gatherRows", p);
}

void scatterAddRowsOp(Device& device, const ScatterAddRowsArguments& args) {
  const auto& [into, x, rows] = args;
  const View index = asRows(rows);
  ScatterAddRowsParameters p{rowsOf<2>({&x, &index}), makeOperand(into), into.shape[0], device.badIndex()};
  p.layout.isVectorized = p.layout.isVectorized && hasVectorRows(into);
  if (p.layout.rows.extent.count > 0) device.launch("scatterAddRows", makeRowGrid(device, p.count), p);
}

void crossEntropyOp(Device& device, const CrossEntropyArguments& args) {
  const View loss = asRows(args.rows.loss), lse = asRows(args.rows.lse), counted = asRows(args.rows.counted);
  const View target = asRows(args.target);
  CrossEntropyParameters p{};
  p.layout = rowsOf<5>({&args.x, &loss, &lse, &counted, &target});
  p.smoothing = args.spec.smoothing;
  p.ignored = args.spec.ignored;
  p.badIndex = device.badIndex();
  launchRows(device, "crossEntropy", p);
}

void crossEntropyBackwardOp(Device& device, const CrossEntropyBackwardArguments& args) {
  const View target = asRows(args.saved.target), lse = asRows(args.saved.lse), dLoss = asRows(args.dLoss);
  CrossEntropyBackwardParameters p{};
  p.layout = rowsOf<5>({&args.dx, &args.saved.x, &target, &lse, &dLoss});
  p.smoothing = args.spec.smoothing;
  p.ignored = args.spec.ignored;
  p.badIndex = device.badIndex();
  launchRows(device, "crossEntropyBackward", p);
}

/// Number of warps that keep a GPU busy, and minimum work per split. Constants, so that sums are the same on every GPU.
constexpr int64_t kTargetReduceWarps = 8192, kMaxReduceSplits = 2048, kMinSplitElements = 2048, kMinSplitRows = 64;
/// Minimum number of adjacent outputs for which one lane per output pays off.
constexpr int64_t kMinAdjacentOutputs = 16;

/// Returns the outputs per lane if adjacent outputs reduce adjacent elements and the elements of one output are not
/// adjacent; 0 if a warp computes each output.
int32_t selectOutputsPerLane(const ReduceParameters& p) {
  const int keptAxis = p.kept.extent.rank - 1, innerAxis = p.inner.extent.rank - 1;
  const Operand &x = p.kept.operand[1], &inner = p.inner.operand[0];
  const bool areOutputsAdjacent =
      keptAxis >= 0 && x.stride[keptAxis] == 1 && p.kept.extent.length[keptAxis] >= kMinAdjacentOutputs;
  if (!areOutputsAdjacent || (innerAxis >= 0 && inner.stride[innerAxis] == 1)) return 0;
  const bool canLoadVectors = p.kept.extent.length[keptAxis] % kVectorLength == 0 &&
                              areVectorsAligned(x.data, x.dtype, x.stride, keptAxis) &&
                              areVectorsAligned(x.data, x.dtype, inner.stride, p.inner.extent.rank);
  return canLoadVectors ? kVectorLength : 1;
}

int64_t countReduceWarps(const ReduceParameters& p) {
  const int64_t outputsPerWarp = p.outputsPerLane == 0 ? 1 : 32 * p.outputsPerLane;
  return (p.kept.extent.count + outputsPerWarp - 1) / outputsPerWarp;
}

/// Returns the number of splits of `inner` that provides enough warps.
int64_t countReduceSplits(const ReduceParameters& p) {
  const int64_t minLength = p.outputsPerLane == 0 ? kMinSplitElements : kMinSplitRows;
  const int64_t requiredSplits = kTargetReduceWarps / std::max<int64_t>(countReduceWarps(p), 1);
  return std::clamp<int64_t>(std::min(requiredSplits, p.inner.extent.count / minLength), 1, kMaxReduceSplits);
}

void launchReduce(Device& device, const ReduceParameters& p, int64_t splits) {
  constexpr int64_t kWarps = kBlockThreads / 32;
  const auto blocks = std::min<int64_t>((countReduceWarps(p) + kWarps - 1) / kWarps, INT32_MAX);
  const char* kernel = p.outputsPerLane == 0 ? "reduce" : "reduceColumns";
  device.launch(kernel, {{static_cast<unsigned>(blocks), static_cast<unsigned>(splits)}, {kBlockThreads}}, p);
}

/// Returns the reduction from partial results [splits, outputs] to the outputs that `kept` iterates over.
ReduceParameters makeFinalReduction(const ReduceParameters& p, float* partial, int64_t splits) {
  const int64_t outputs = p.kept.extent.count;
  ReduceParameters finalReduction = p;
  Operand& results = finalReduction.kept.operand[1];
  results.data = partial;
  results.dtype = DType::Float32;
  int64_t stride = 1;
  for (int axis = p.kept.extent.rank - 1; axis >= 0; axis--) {
    results.stride[axis] = stride;
    stride *= p.kept.extent.length[axis];
  }
  finalReduction.inner = {};
  finalReduction.inner.extent = {1, splits, {splits}};
  finalReduction.inner.operand[0] = {partial, DType::Float32, {outputs}};
  finalReduction.partial = nullptr;
  finalReduction.splitLength = splits;
  finalReduction.inner.isVectorized = outputs == 1 && splits % kVectorLength == 0;
  finalReduction.outputsPerLane = selectOutputsPerLane(finalReduction);
  return finalReduction;
}

/// Returns loops over the kept axes of x and over the reduced axes.
ReduceParameters makeReduceParameters(const ReduceArguments& args) {
  const auto& [kind, out, x] = args;
  View keptOut = out, keptX = x, inner = x;
  keptOut.rank = keptX.rank = inner.rank = 0;
  for (int axis = 0; axis < x.rank; axis++) {
    const int outAxis = axis - x.rank + out.rank;
    const bool isReducedAxis = outAxis < 0 || (out.shape[outAxis] == 1 && x.shape[axis] != 1);
    View& into = isReducedAxis ? inner : keptX;
    into.shape[into.rank] = x.shape[axis];
    into.stride[into.rank++] = x.stride[axis];
    if (isReducedAxis) continue;
    keptOut.shape[keptOut.rank] = out.shape[outAxis];
    keptOut.stride[keptOut.rank++] = out.stride[outAxis];
  }
  ReduceParameters p{makeLoop<2>({&keptOut, &keptX}), makeLoop<1>({&inner}), kind, 0, 0, nullptr};
  p.outputsPerLane = selectOutputsPerLane(p);
  const Operand& outputs = p.kept.operand[1];
  p.inner.isVectorized =
      p.inner.isVectorized && areVectorsAligned(outputs.data, outputs.dtype, outputs.stride, p.kept.extent.rank);
  return p;
}

void reduceOp(Device& device, const ReduceArguments& args) {
  ReduceParameters p = makeReduceParameters(args);
  int64_t splits = countReduceSplits(p);
  const size_t partialBytes = static_cast<size_t>(splits * p.kept.extent.count) * sizeof(float);
  const CUdeviceptr partial = splits > 1 ? device.memory().allocate(partialBytes) : 0;
  if (partial == 0) splits = 1;  // also if memory is insufficient: slower, with different rounding
  const int64_t length = (p.inner.extent.count + splits - 1) / splits;
  p.splitLength = (length + kVectorLength - 1) / kVectorLength * kVectorLength;
  p.partial = reinterpret_cast<float*>(static_cast<uintptr_t>(partial));
  launchReduce(device, p, splits);
  if (partial == 0) return;
  launchReduce(device, makeFinalReduction(p, p.partial, splits), 1);
  device.memory().free(partial, partialBytes);
}

template <class Arguments>
void readAndStart(Device& device, ArgumentReader reader, void (*start)(Device& device, const Arguments& args)) {
  Arguments args;
  args.read(reader);
  start(device, args);
}

struct Op {
  const char* name;
  void (*start)(Device& device, ArgumentReader args);
};

constexpr Op kOps[] = {
#define MOSAIC_OP(name, Arguments) \
  {#name, [](Device& device, ArgumentReader args) { readAndStart(device, args, name##Op); }},
    MOSAIC_KERNELS(MOSAIC_OP)
#undef MOSAIC_OP
};

// On return, arguments[0] is 0, or 1 if the device has failed and nothing was launched.
napi_value launch(napi_env env, napi_callback_info info) {
  void* data;
  napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data);
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  const Op& op = *static_cast<const Op*>(data);
  addon.arguments[0] = 1;
  if (device.failure()) return nullptr;
  try {
    op.start(device, ArgumentReader(addon.arguments + 1));
    addon.arguments[0] = 0;
  } catch (const CallError& error) {
    const Failure failure = device.describeFailure(error);
    device.fail(failure.code(), failure.what());
  } catch (const Failure& failure) {
    device.fail(failure.code(), failure.what());
  } catch (const std::exception& error) {
    const std::string text = error.what();
    device.fail(MOSAIC_FAILURE_DEVICE, text.starts_with(op.name) ? text : std::string(op.name) + ": " + text);
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
