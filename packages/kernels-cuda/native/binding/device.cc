// Exports of the device itself: opening and closing, memory, its failure.
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "binding/addon.h"
#include "device/module.h"
#include "driver/driver.h"

namespace mosaic::cuda {

namespace {

struct DeviceHandle {
  std::unique_ptr<Device> device;
  std::shared_ptr<Environment> environment;
  int64_t reportedBytes = 0;  // bytes reported to V8
};

void reportMemory(napi_env env, DeviceHandle& handle, int64_t bytes) {
  int64_t ignored;
  napi_adjust_external_memory(env, bytes - handle.reportedBytes, &ignored);
  handle.reportedBytes = bytes;
}

/// Whether the process is exiting. The driver then releases all resources itself, and closing a device would fail.
/// Called only on the JavaScript thread, the only one that writes `isAlive`, so no mutex is needed.
// Uses the system call, because glibc has `gettid` only since 2.30.
bool isProcessEnding(const Environment& environment) { return !environment.isAlive && syscall(SYS_gettid) == getpid(); }

// open(): arguments = ordinal, limit, TF32 → an external that owns the device; arguments = device address, stream,
// capability, port.
napi_value open(napi_env env, napi_callback_info) {
  return rethrowAsJsError(env, nullptr, [&] {
    Addon& addon = Addon::of(env);
    const DeviceOptions options{static_cast<int>(addon.arguments[0]), static_cast<size_t>(addon.arguments[1]),
                                addon.arguments[2] != 0};
    auto* handle = new DeviceHandle{std::make_unique<Device>(options), addon.environment};
    addon.arguments[0] = static_cast<double>(reinterpret_cast<uintptr_t>(handle->device.get()));
    addon.arguments[1] = static_cast<double>(reinterpret_cast<uintptr_t>(handle->device->stream()));
    addon.arguments[2] = handle->device->capability();
    addon.arguments[3] = static_cast<double>(reinterpret_cast<uintptr_t>(&handle->device->port()));
    napi_value external;
    const auto finalize = [](napi_env, void* data, void*) {
      auto* handle = static_cast<DeviceHandle*>(data);
      if (handle->device && isProcessEnding(*handle->environment)) handle->device.release();
      if (handle->device) Device::close(std::move(handle->device));
      delete handle;
    };
    napi_create_external(env, handle, finalize, nullptr, &external);
    return external;
  });
}

// close(external): no other call on the device may follow.
napi_value close(napi_env env, napi_callback_info info) {
  DeviceHandle* handle = externalIn<DeviceHandle>(env, info);
  reportMemory(env, *handle, 0);
  if (handle->device) Device::close(std::move(handle->device));
  return nullptr;
}

napi_value account(napi_env env, napi_callback_info info) {
  DeviceHandle* handle = externalIn<DeviceHandle>(env, info);
  reportMemory(env, *handle, static_cast<int64_t>(Addon::of(env).arguments[1]));
  return nullptr;
}

// allocate: arguments = device, bytes → arguments = address or 0, and the same again as the handle for free.
napi_value allocate(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  return rethrowAsJsError(env, &device, [&]() -> napi_value {
    addon.arguments[0] = static_cast<double>(device.memory().allocate(static_cast<size_t>(addon.arguments[1])));
    addon.arguments[1] = addon.arguments[0];
    return nullptr;
  });
}

// free: arguments = device, address, bytes.
napi_value free(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  addon.device().memory().free(static_cast<CUdeviceptr>(addon.arguments[1]), static_cast<size_t>(addon.arguments[2]));
  return nullptr;
}

// memory: arguments = device → arguments = allocated, reserved, peak, limit, scratch bytes of kernels and collectives.
napi_value memory(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  const Memory& memory = addon.device().memory();
  const MemoryStats stats = memory.stats();
  addon.arguments[0] = static_cast<double>(stats.allocated);
  addon.arguments[1] = static_cast<double>(stats.reserved);
  addon.arguments[2] = static_cast<double>(stats.peak);
  addon.arguments[3] = static_cast<double>(memory.limit());
  addon.arguments[4] = static_cast<double>(stats.scratch);
  return nullptr;
}

napi_value resetPeak(napi_env env, napi_callback_info) {
  Addon::of(env).device().memory().resetPeak();
  return nullptr;
}

napi_value trim(napi_env env, napi_callback_info) {
  Addon::of(env).device().trim();
  return nullptr;
}

// failure: arguments = device → [code, message], or undefined if the device has not failed.
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

}  // namespace

void exportDevice(napi_env env, napi_value exports) {
  exportAll(env, exports,
            {{"open", open},
             {"close", close},
             {"account", account},
             {"allocate", allocate},
             {"free", free},
             {"memory", memory},
             {"resetPeak", resetPeak},
             {"trim", trim},
             {"failure", failure},
             {"probe", probe}});
}

napi_value probe(napi_env env, napi_callback_info) {
  return rethrowAsJsError(env, nullptr, [&] {
    const Driver& cuda = driver();
    int count = 0;
    check(cuda.deviceGetCount(&count), "counting GPUs");
    napi_value list;
    napi_create_array(env, &list);
    auto add = [&, next = uint32_t{0}](const std::string& text) mutable {
      napi_value value;
      napi_create_string_utf8(env, text.data(), text.size(), &value);
      napi_set_element(env, list, next++, value);
    };
    add(versionText(driverVersion()));
    add(driverLibrary());
    add(emulatedKernelImage() || kernelImage() ? "kernels" : "");
    const BlasLibrary* blas = blasLibrary();
    add(blas ? blas->name + " " + blas->version : "");
    for (int ordinal = 0; ordinal < count; ordinal++) {
      CUdevice device = 0;
      char name[256] = "";
      int major = 0, minor = 0;
      size_t bytes = 0;
      cuda.deviceGet(&device, ordinal);
      cuda.deviceGetName(name, sizeof name, device);
      cuda.deviceGetAttribute(&major, COMPUTE_CAPABILITY_MAJOR, device);
      cuda.deviceGetAttribute(&minor, COMPUTE_CAPABILITY_MINOR, device);
      cuda.deviceTotalMem(&bytes, device);
      add(name);
      add(std::to_string(major) + "." + std::to_string(minor));
      add(std::to_string(bytes));
    }
    return list;
  });
}

}  // namespace mosaic::cuda
