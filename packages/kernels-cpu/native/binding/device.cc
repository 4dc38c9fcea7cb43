// Exports of the device itself: opening and closing, memory, transfers, fences, tracing.
#include <cstdlib>
#include <cstring>
#include <string>

#include "binding/addon.h"
#include "micro/peak.h"
#include "mosaic/argument_reader.h"

namespace mosaic {

namespace {

struct DeviceHandle {
  std::shared_ptr<Device> device;
  int64_t reportedBytes = 0;  // bytes reported to V8
};

DeviceHandle* deviceHandle(napi_env env, napi_callback_info info) {
  size_t count = 1;
  napi_value argument;
  void* data = nullptr;
  napi_get_cb_info(env, info, &count, &argument, nullptr, nullptr);
  napi_get_value_external(env, argument, &data);
  return static_cast<DeviceHandle*>(data);
}

void reportMemory(napi_env env, DeviceHandle& handle, int64_t bytes) {
  int64_t ignored;
  napi_adjust_external_memory(env, bytes - handle.reportedBytes, &ignored);
  handle.reportedBytes = bytes;
}

// open(): arguments = threads, limit → an external that owns the device; arguments = address of the device, of its
// stream.
napi_value open(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  const IsaChoice choice = chooseIsa(std::getenv("MOSAIC_ISA"));
  const DeviceOptions options{static_cast<int>(addon.arguments[0]), static_cast<size_t>(addon.arguments[1]),
                              choice.isa};
  auto* handle = new DeviceHandle{Device::open(options)};
  std::erase_if(addon.devices, [](const auto& weakDevice) { return weakDevice.expired(); });
  addon.devices.push_back(handle->device);
  addon.arguments[0] = static_cast<double>(reinterpret_cast<uintptr_t>(handle->device.get()));
  addon.arguments[1] = static_cast<double>(reinterpret_cast<uintptr_t>(&handle->device->stream));
  napi_value external;
  auto finalize = [](napi_env env, void* data, void*) {
    auto* handle = static_cast<DeviceHandle*>(data);
    reportMemory(env, *handle, 0);
    handle->device->close();
    delete handle;
  };
  napi_create_external(env, handle, finalize, nullptr, &external);
  return external;
}

// close(external): no other call on the device may follow.
napi_value close(napi_env env, napi_callback_info info) {
  DeviceHandle* handle = deviceHandle(env, info);
  reportMemory(env, *handle, 0);
  handle->device->close();
  return nullptr;
}

// allocate: arguments = device, bytes → arguments = address or 0, block, block size in bytes.
napi_value allocate(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  Release release;
  const auto bytes = static_cast<size_t>(addon.arguments[1]);
  Block* block = device.memory().allocate(bytes, release);
  device.releaseInOrder(std::move(release));
  if (block) device.poisonEndInOrder(*block, bytes);
  addon.arguments[0] = block ? static_cast<double>(reinterpret_cast<uintptr_t>(block->data)) : 0;
  addon.arguments[1] = static_cast<double>(reinterpret_cast<uintptr_t>(block));
  addon.arguments[2] = block ? static_cast<double>(block->size) : 0;
  return nullptr;
}

// free: arguments = device, block.
napi_value free(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  addon.device().memory().free(reinterpret_cast<Block*>(static_cast<uintptr_t>(addon.arguments[1])));
  return nullptr;
}

// account(external): arguments = device, bytes of external memory to report to V8.
napi_value account(napi_env env, napi_callback_info info) {
  DeviceHandle* handle = deviceHandle(env, info);
  reportMemory(env, *handle, static_cast<int64_t>(Addon::of(env).arguments[1]));
  return nullptr;
}

// memory: arguments = device → arguments = allocated, reserved, peak, limit, scratch bytes of kernels.
napi_value memory(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  const Allocator& memory = device.memory();
  addon.arguments[0] = static_cast<double>(memory.stats().allocated);
  addon.arguments[1] = static_cast<double>(memory.stats().reserved);
  addon.arguments[2] = static_cast<double>(memory.stats().peak);
  addon.arguments[3] = static_cast<double>(memory.limit());
  addon.arguments[4] = static_cast<double>(device.scratchBytes());
  return nullptr;
}

napi_value resetPeak(napi_env env, napi_callback_info) {
  Addon::of(env).device().memory().resetPeak();
  return nullptr;
}

napi_value trim(napi_env env, napi_callback_info) {
  Device& device = Addon::of(env).device();
  Release release;
  device.memory().trim(release);
  device.releaseInOrder(std::move(release));
  return nullptr;
}

View denseView(float* data, const View& source) {
  View view = source;
  view.data = data;
  view.dtype = DType::Float32;
  int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; axis--) {
    view.stride[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

// Gets the memory of the Float32Array that is the only argument of a call.
bool getFloatArray(napi_env env, napi_callback_info info, float** data, size_t* length) {
  size_t count = 1;
  napi_value array;
  napi_typedarray_type type;
  void* memory = nullptr;
  napi_get_cb_info(env, info, &count, &array, nullptr, nullptr);
  if (napi_get_typedarray_info(env, array, &type, length, &memory, nullptr, nullptr) != napi_ok) return false;
  *data = static_cast<float*>(memory);
  return type == napi_float32_array;
}

// write(Float32Array): arguments = device, view. The values are copied before the call returns.
napi_value write(napi_env env, napi_callback_info info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  float* data;
  size_t length;
  if (!getFloatArray(env, info, &data, &length))
    return throwError(env, "write: expected a Float32Array, received a value of another type");
  if (device.stream.failure()) {
    addon.arguments[0] = 1;
    return nullptr;
  }
  const View out = ArgumentReader(addon.arguments + 1).view();
  std::unique_ptr<float[]> stagingBuffer(new (std::nothrow) float[length]);
  if (!stagingBuffer) {
    const std::string message = "write: cannot allocate a staging buffer of " +
                                std::to_string(length * sizeof(float)) + " bytes; write fewer values at a time";
    napi_throw_error(env, std::to_string(MOSAIC_FAILURE_OUT_OF_MEMORY).c_str(), message.c_str());
    return nullptr;
  }
  if (length > 0) std::memcpy(stagingBuffer.get(), data, length * sizeof(float));
  enqueue(device.stream, "write", [out, &device, values = std::move(stagingBuffer)] {
    device.kernels.copy({out, denseView(values.get(), out)}, device.pool());
  });
  addon.arguments[0] = 0;
  return nullptr;
}

// read(Float32Array): arguments = device, completion, view. JavaScript keeps the array until the completion arrives.
napi_value read(napi_env env, napi_callback_info info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  float* data;
  size_t length;
  if (!getFloatArray(env, info, &data, &length))
    return throwError(env, "read: expected a Float32Array, received a value of another type");
  ArgumentReader args(addon.arguments + 1);
  const double completion = args.number();
  const View x = args.view();
  enqueue(device.stream, "read", [data, x, &device] {
    device.kernels.copy({denseView(data, x), x}, device.pool());
  });
  enqueueEvenIfFailed(device.stream, "", [completion, completions = addon.completions](const MosaicFailure* failure) {
    completions->complete(completion, failure);
  });
  addon.completions->expect();
  return nullptr;
}

// synchronize: arguments = device, completion.
napi_value synchronize(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  auto notify = [completion = addon.arguments[1], completions = addon.completions](const MosaicFailure* failure) {
    completions->complete(completion, failure);
  };
  enqueueEvenIfFailed(addon.device().stream, "", notify);
  addon.completions->expect();
  return nullptr;
}

// record: arguments = device → arguments = position.
napi_value record(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  addon.arguments[0] = static_cast<double>(addon.device().stream.position());
  return nullptr;
}

// wait: arguments = device, other device, position.
napi_value wait(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  auto* otherDevice = reinterpret_cast<Device*>(static_cast<uintptr_t>(addon.arguments[1]));
  const auto position = static_cast<uint64_t>(addon.arguments[2]);
  enqueue(addon.device().stream, "wait", [position, otherDevice = otherDevice->shared_from_this()] {
    const MosaicFailure* failure = otherDevice->stream.waitFor(position);
    if (failure) throw Failure(*failure);
  });
  return nullptr;
}

// failure: arguments = device → [code, message], or undefined if the stream has not failed.
napi_value failure(napi_env env, napi_callback_info) {
  const MosaicFailure* failure = Addon::of(env).device().stream.failure();
  if (!failure) return nullptr;
  napi_value pair, code, message;
  napi_create_array_with_length(env, 2, &pair);
  napi_create_int32(env, failure->code, &code);
  napi_create_string_utf8(env, failure->message, NAPI_AUTO_LENGTH, &message);
  napi_set_element(env, pair, 0, code);
  napi_set_element(env, pair, 1, message);
  return pair;
}

napi_value startTrace(napi_env env, napi_callback_info) {
  Device& device = Addon::of(env).device();
  enqueueEvenIfFailed(device.stream, "", [&device](const MosaicFailure*) {
    device.stream.takeTrace();
    device.stream.setTracing(true);
  });
  return nullptr;
}

// stopTrace: arguments = device, completion; call `takeTrace` once the completion has arrived.
napi_value stopTrace(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  const double completion = addon.arguments[1];
  auto entries = addon.traces[completion] = std::make_shared<std::vector<TraceEntry>>();
  const auto onTraceEnd = [&device, entries, completion, completions = addon.completions](const MosaicFailure*) {
    device.stream.setTracing(false);
    *entries = device.stream.takeTrace();
    completions->complete(completion, nullptr);
  };
  enqueueEvenIfFailed(device.stream, "", onTraceEnd);
  addon.completions->expect();
  return nullptr;
}

// takeTrace: arguments = device, completion → [name, start, end, name, …].
napi_value takeTrace(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  const auto trace = addon.traces.find(addon.arguments[1]);
  if (trace == addon.traces.end()) {
    const std::string message = "takeTrace: expected a completion with a recorded trace, received completion " +
                                std::to_string(static_cast<int64_t>(addon.arguments[1]));
    return throwError(env, message.c_str());
  }
  const std::vector<TraceEntry> entries = std::move(*trace->second);
  addon.traces.erase(trace);
  napi_value list;
  napi_create_array_with_length(env, entries.size() * 3, &list);
  uint32_t index = 0;
  for (const TraceEntry& entry : entries) {
    napi_value name, start, end;
    napi_create_string_utf8(env, entry.name, NAPI_AUTO_LENGTH, &name);
    napi_create_double(env, static_cast<double>(entry.start), &start);
    napi_create_double(env, static_cast<double>(entry.end), &end);
    for (napi_value value : {name, start, end}) napi_set_element(env, list, index++, value);
  }
  return list;
}

// injectFailure(handle, message): submits work that fails, through the ABI, as native code of another package would.
napi_value injectFailure(napi_env env, napi_callback_info info) {
  size_t count = 2;
  napi_value arguments[2];
  uint64_t handle = 0;
  bool isLossless = false;
  auto message = std::make_unique<MosaicFailure>(MosaicFailure{MOSAIC_FAILURE_DEVICE, {}});
  napi_get_cb_info(env, info, &count, arguments, nullptr, nullptr);
  napi_get_value_bigint_uint64(env, arguments[0], &handle, &isLossless);
  napi_get_value_string_utf8(env, arguments[1], message->message, sizeof message->message, nullptr);
  auto run = [](void* arg, const MosaicFailure*, MosaicFailure* failure) -> int {
    *failure = *static_cast<MosaicFailure*>(arg);
    return 1;
  };
  auto drop = [](void* arg) { delete static_cast<MosaicFailure*>(arg); };
  auto* stream = reinterpret_cast<MosaicStream*>(static_cast<uintptr_t>(handle));
  if (stream->abi != MOSAIC_STREAM_ABI) return nullptr;
  const MosaicWork work{"fail", run, drop, message.release()};
  stream->submit(stream, &work);
  return nullptr;
}

// features: → "isa,supported,supported…", or an error if MOSAIC_ISA names an instruction set unsupported on this
// machine.
napi_value features(napi_env env, napi_callback_info) {
  const IsaChoice choice = chooseIsa(std::getenv("MOSAIC_ISA"));
  if (!choice.error.empty()) return throwError(env, choice.error.c_str());
  std::string text = isaName(choice.isa);
  for (Isa isa : supportedIsas()) text += std::string(",") + isaName(isa);
  napi_value result;
  napi_create_string_utf8(env, text.data(), text.size(), &result);
  return result;
}

// fmaPeak: arguments = threads, dtype → arguments = GFLOP/s. Blocks the host.
napi_value fmaPeak(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Pool pool(static_cast<int>(addon.arguments[0]));
  const Isa isa = chooseIsa(std::getenv("MOSAIC_ISA")).isa;
  addon.arguments[0] = peakGflops(isa, static_cast<DType>(addon.arguments[1]), pool);
  return nullptr;
}

// readBandwidth: arguments = threads, bytes → arguments = GB/s. Blocks the host.
napi_value readBandwidth(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Pool pool(static_cast<int>(addon.arguments[0]));
  const auto bytes = static_cast<int64_t>(addon.arguments[1]);
  addon.arguments[0] = measureReadBandwidth(bytes, chooseIsa(std::getenv("MOSAIC_ISA")).isa, pool);
  return nullptr;
}

struct Export {
  const char* name;
  napi_callback call;
};

constexpr Export kExports[] = {
    {"open", guarded<open>},                    {"close", guarded<close>},
    {"allocate", guarded<allocate>},            {"free", guarded<free>},
    {"account", guarded<account>},              {"memory", guarded<memory>},
    {"resetPeak", guarded<resetPeak>},          {"trim", guarded<trim>},
    {"write", guarded<write>},                  {"read", guarded<read>},
    {"synchronize", guarded<synchronize>},      {"record", guarded<record>},
    {"wait", guarded<wait>},                    {"failure", guarded<failure>},
    {"startTrace", guarded<startTrace>},        {"stopTrace", guarded<stopTrace>},
    {"takeTrace", guarded<takeTrace>},          {"features", guarded<features>},
    {"fmaPeak", guarded<fmaPeak>},              {"injectFailure", guarded<injectFailure>},
    {"readBandwidth", guarded<readBandwidth>},
};

}  // namespace

void exportDevice(napi_env env, napi_value exports) {
  for (const Export& entry : kExports) {
    napi_value function;
    napi_create_function(env, entry.name, NAPI_AUTO_LENGTH, entry.call, nullptr, &function);
    napi_set_named_property(env, exports, entry.name, function);
  }
  napi_value guards;
  napi_get_boolean(env, kGuardsBlockEnds, &guards);
  napi_set_named_property(env, exports, "guardsBlockEnds", guards);
}

}  // namespace mosaic
