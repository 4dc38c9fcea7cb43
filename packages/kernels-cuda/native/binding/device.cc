// Exports of the device itself: opening and closing, memory, transfers, fences, tracing.
#include <cstdio>
#include <cstring>
#include <string>

#include "binding/addon.h"
#include "binding/loop.h"
#include "kernels/elementwise.h"
#include "mosaic/reader.h"

namespace mosaic::cuda {

namespace {

struct Held {
  std::shared_ptr<Device> device;
  int64_t reported = 0;  // bytes V8 knows of
};

template <class T>
T* externalIn(napi_env env, napi_callback_info info) {
  size_t count = 1;
  napi_value argument;
  void* data = nullptr;
  napi_get_cb_info(env, info, &count, &argument, nullptr, nullptr);
  napi_get_value_external(env, argument, &data);
  return static_cast<T*>(data);
}

void report(napi_env env, Held& held, int64_t bytes) {
  int64_t ignored;
  napi_adjust_external_memory(env, bytes - held.reported, &ignored);
  held.reported = bytes;
}

/// Host memory that the GPU reaches directly.
class Pinned {
 public:
  explicit Pinned(size_t bytes) {
    check(driver().memAllocHost(&memory_, std::max<size_t>(bytes, 1)), "pinning memory");
  }
  ~Pinned() { driver().memFreeHost(memory_); }
  Pinned(const Pinned&) = delete;
  float* floats() const { return static_cast<float*>(memory_); }
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

/// The device's failure if it has one, else what waiting returned and indices that named nothing.
const MosaicFailure* failureAfter(Device& device, CUresult code, const BadIndex& bad) {
  if (code != CUDA_SUCCESS) {
    const char *name = nullptr, *text = nullptr;
    driver().getErrorName(code, &name);
    driver().getErrorString(code, &text);
    const std::string what = std::string(text ? text : "unknown error") + " (" + (name ? name : "?") + ")";
    device.fail(MOSAIC_FAILURE_DEVICE, device.name() + ": " + what +
                                           "; a kernel failed some time before: CUDA_LAUNCH_BLOCKING=1 finds it");
  } else if (bad.found) {
    constexpr const char* kNames[] = {"gatherRows", "scatterAddRows", "crossEntropy", "crossEntropyBackward"};
    char message[160];
    std::snprintf(message, sizeof message, "%s: expected whole numbers from 0 to %lld, received %g",
                  kNames[static_cast<int>(bad.kernel)], static_cast<long long>(bad.count - 1), double{bad.value});
    device.fail(MOSAIC_FAILURE_DEVICE, message);
  }
  return device.failure();
}

/// Calls then(failure) on the watcher's thread, once all work so far is done.
template <class Then>
void afterAll(const std::shared_ptr<Device>& device, Then then) {
  auto bad = std::make_shared<Pinned>(sizeof(BadIndex));
  auto& none = *static_cast<BadIndex*>(bad->get());
  none = BadIndex{};
  driver().memcpyDtoHAsync(bad->get(), reinterpret_cast<uintptr_t>(device->badIndex()), sizeof(BadIndex),
                           device->stream());
  device->watcher().after(device->stream(), [device = device.get(), bad, then](CUresult code) {
    then(failureAfter(*device, code, *static_cast<const BadIndex*>(bad->get())));
  });
}

// Devices that are open, by address: JavaScript names them by a number.
std::unordered_map<const Device*, std::shared_ptr<Device>>& openDevices() {
  static thread_local std::unordered_map<const Device*, std::shared_ptr<Device>> open;
  return open;
}
const std::shared_ptr<Device>& shared(const Device& device) { return openDevices().at(&device); }

// open(): scratch = ordinal, limit → an external that keeps the device; scratch = its address, stream, capability.
napi_value open(napi_env env, napi_callback_info) {
  return guarded(env, [&] {
    Addon& addon = Addon::of(env);
    auto device = std::make_shared<Device>(static_cast<int>(addon.scratch[0]), static_cast<size_t>(addon.scratch[1]));
    openDevices()[device.get()] = device;
    addon.scratch[0] = static_cast<double>(reinterpret_cast<uintptr_t>(device.get()));
    addon.scratch[1] = static_cast<double>(reinterpret_cast<uintptr_t>(device->stream()));
    addon.scratch[2] = device->capability();
    auto* held = new Held{std::move(device)};
    napi_value external;
    const auto finalize = [](napi_env, void* data, void*) {
      auto* held = static_cast<Held*>(data);
      if (held->device) openDevices().erase(held->device.get());
      delete held;
    };
    napi_create_external(env, held, finalize, nullptr, &external);
    return external;
  });
}

// close(external): no other call may follow.
napi_value close(napi_env env, napi_callback_info info) {
  Held* held = externalIn<Held>(env, info);
  if (!held->device) return nullptr;
  report(env, *held, 0);
  openDevices().erase(held->device.get());
  held->device.reset();
  return nullptr;
}

napi_value account(napi_env env, napi_callback_info info) {
  Held* held = externalIn<Held>(env, info);
  report(env, *held, static_cast<int64_t>(held->device->memory().allocated));
  return nullptr;
}

// allocate: scratch = device, bytes → scratch = address or 0, and the same again to free it by.
napi_value allocate(napi_env env, napi_callback_info) {
  return guarded(env, [&]() -> napi_value {
    Addon& addon = Addon::of(env);
    Device& device = addon.device();
    device.enter();
    addon.scratch[0] = static_cast<double>(device.allocate(static_cast<size_t>(addon.scratch[1])));
    addon.scratch[1] = addon.scratch[0];
    return nullptr;
  });
}

// free: scratch = device, address, bytes.
napi_value free(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  device.enter();
  device.free(static_cast<CUdeviceptr>(addon.scratch[1]), static_cast<size_t>(addon.scratch[2]));
  return nullptr;
}

// memory: scratch = device → scratch = allocated, reserved, peak, limit.
napi_value memory(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  const Device& device = addon.device();
  const MemoryStats stats = device.memory();
  addon.scratch[0] = static_cast<double>(stats.allocated);
  addon.scratch[1] = static_cast<double>(stats.reserved);
  addon.scratch[2] = static_cast<double>(stats.peak);
  addon.scratch[3] = static_cast<double>(device.limit());
  return nullptr;
}

napi_value resetPeak(napi_env env, napi_callback_info) {
  Addon::of(env).device().resetPeak();
  return nullptr;
}

napi_value trim(napi_env env, napi_callback_info) {
  Addon::of(env).device().trim();
  return nullptr;
}

/// A dense float32 view of `like`'s shape.
View denseLike(CUdeviceptr data, const View& like) {
  View view = like;
  view.data = reinterpret_cast<void*>(static_cast<uintptr_t>(data));
  view.dtype = DType::Float32;
  int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; axis--) {
    view.stride[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

void copyViews(Device& device, const View& out, const View& x) {
  const CopyParameters p{loopOf<2>({&out, &x})};
  device.launch("copy", gridFor(device, p.loop.extent.count), p);
}

CUdeviceptr staging(Device& device, size_t bytes) {
  const CUdeviceptr memory = device.allocate(bytes);
  if (memory == 0) throw Failure(MOSAIC_FAILURE_OUT_OF_MEMORY, "no device memory to copy through");
  return memory;
}

// The memory of the Float32Array that a call got as its only argument.
bool floats(napi_env env, napi_callback_info info, float** data, size_t* length) {
  size_t count = 1;
  napi_value array;
  napi_typedarray_type type;
  void* memory = nullptr;
  napi_get_cb_info(env, info, &count, &array, nullptr, nullptr);
  if (napi_get_typedarray_info(env, array, &type, length, &memory, nullptr, nullptr) != napi_ok) return false;
  *data = static_cast<float*>(memory);
  return type == napi_float32_array;
}

// write(Float32Array): scratch = device, view. The values are taken now.
napi_value write(napi_env env, napi_callback_info info) {
  return guarded(env, [&]() -> napi_value {
    Addon& addon = Addon::of(env);
    Device& device = addon.device();
    float* data = nullptr;
    size_t length = 0;
    if (!floats(env, info, &data, &length)) throw std::runtime_error("write: expected a Float32Array");
    addon.scratch[0] = device.failure() ? 1 : 0;
    if (device.failure() || length == 0) return nullptr;
    device.enter();
    const View out = Reader(addon.scratch + 1).view();
    const size_t bytes = length * sizeof(float);
    auto host = std::make_shared<Pinned>(bytes);
    std::memcpy(host->get(), data, bytes);
    const CUdeviceptr dense = staging(device, bytes);
    check(driver().memcpyHtoDAsync(dense, host->get(), bytes, device.stream()), "write");
    copyViews(device, out, denseLike(dense, out));
    device.free(dense, bytes);
    device.watcher().after(device.stream(), [host](CUresult) {});
    return nullptr;
  });
}

// read(Float32Array): scratch = device, letter, view. JavaScript keeps the array until the letter comes.
napi_value read(napi_env env, napi_callback_info info) {
  return guarded(env, [&]() -> napi_value {
    Addon& addon = Addon::of(env);
    Device& device = addon.device();
    float* data = nullptr;
    size_t length = 0;
    if (!floats(env, info, &data, &length)) throw std::runtime_error("read: expected a Float32Array");
    device.enter();
    Reader args(addon.scratch + 1);
    const double letter = args.number();
    const View x = args.view();
    const size_t bytes = length * sizeof(float);
    auto host = std::make_shared<Pinned>(bytes);
    if (length > 0 && !device.failure()) {
      const CUdeviceptr dense = staging(device, bytes);
      copyViews(device, denseLike(dense, x), x);
      // A failure shows when the work is waited for.
      driver().memcpyDtoHAsync(host->get(), dense, bytes, device.stream());
      device.free(dense, bytes);
    }
    addon.mailbox->expect();
    afterAll(shared(device), [=, mailbox = addon.mailbox](const MosaicFailure* failure) {
      if (!failure && bytes > 0) std::memcpy(data, host->get(), bytes);
      mailbox->post(letter, failure);
    });
    return nullptr;
  });
}

// synchronize: scratch = device, letter.
napi_value synchronize(napi_env env, napi_callback_info) {
  return guarded(env, [&]() -> napi_value {
    Addon& addon = Addon::of(env);
    Device& device = addon.device();
    device.enter();
    addon.mailbox->expect();
    afterAll(shared(device), [letter = addon.scratch[1], mailbox = addon.mailbox](const MosaicFailure* failure) {
      mailbox->post(letter, failure);
    });
    return nullptr;
  });
}

// record(): scratch = device → an external that holds the event.
napi_value record(napi_env env, napi_callback_info) {
  return guarded(env, [&] {
    Device& device = Addon::of(env).device();
    device.enter();
    CUevent event = nullptr;
    check(driver().eventCreate(&event, EVENT_DISABLE_TIMING), "record");
    check(driver().eventRecord(event, device.stream()), "record");
    napi_value external;
    const auto finalize = [](napi_env, void* data, void*) { driver().eventDestroy(static_cast<CUevent>(data)); };
    napi_create_external(env, event, finalize, nullptr, &external);
    return external;
  });
}

// wait(event): scratch = device.
napi_value wait(napi_env env, napi_callback_info info) {
  return guarded(env, [&]() -> napi_value {
    Device& device = Addon::of(env).device();
    device.enter();
    check(driver().streamWaitEvent(device.stream(), externalIn<CUevent_st>(env, info), 0), "wait");
    return nullptr;
  });
}

// failure: scratch = device → [code, message], or undefined while the device is sound.
napi_value failure(napi_env env, napi_callback_info) {
  const MosaicFailure* failure = Addon::of(env).device().failure();
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
  device.enter();
  device.startTrace();
  return nullptr;
}

// stopTrace: scratch = device, letter; `takeTrace` is to be called once the letter has come.
napi_value stopTrace(napi_env env, napi_callback_info) {
  return guarded(env, [&]() -> napi_value {
    Addon& addon = Addon::of(env);
    Device& device = addon.device();
    device.enter();
    addon.mailbox->expect();
    const double letter = addon.scratch[1];
    auto entries = addon.traces[letter] = std::make_shared<std::vector<TraceEntry>>();
    afterAll(shared(device), [=, &device, mailbox = addon.mailbox](const MosaicFailure*) {
      *entries = device.stopTrace();
      mailbox->post(letter, nullptr);
    });
    return nullptr;
  });
}

// takeTrace: scratch = device, letter → name, start, end of each entry, flat.
napi_value takeTrace(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  const auto found = addon.traces.find(addon.scratch[1]);
  napi_value flat;
  napi_create_array(env, &flat);
  if (found == addon.traces.end()) return flat;
  uint32_t next = 0;
  for (const auto& [name, start, end] : *found->second) {
    napi_value values[3];
    napi_create_string_utf8(env, name, NAPI_AUTO_LENGTH, &values[0]);
    napi_create_double(env, static_cast<double>(start), &values[1]);
    napi_create_double(env, static_cast<double>(end), &values[2]);
    for (const napi_value value : values) napi_set_element(env, flat, next++, value);
  }
  addon.traces.erase(found);
  return flat;
}

}  // namespace

void exportDevice(napi_env env, napi_value exports) {
  const struct {
    const char* name;
    napi_callback function;
  } all[] = {{"open", open},           {"close", close},         {"account", account},   {"allocate", allocate},
             {"free", free},           {"memory", memory},       {"resetPeak", resetPeak}, {"trim", trim},
             {"write", write},         {"read", read},           {"synchronize", synchronize}, {"record", record},
             {"wait", wait},           {"failure", failure},     {"startTrace", startTrace}, {"stopTrace", stopTrace},
             {"takeTrace", takeTrace}, {"probe", probe}};
  for (const auto& [name, function] : all) {
    napi_value value;
    napi_create_function(env, name, NAPI_AUTO_LENGTH, function, nullptr, &value);
    napi_set_named_property(env, exports, name, value);
  }
}

}  // namespace mosaic::cuda
