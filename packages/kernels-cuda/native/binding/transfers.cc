// Exports for copies between JavaScript's memory and the device's. They use pinned memory and, if the tensor is not
// dense float32, a staging buffer on the device, from which a kernel converts.
#include <cstring>
#include <string>

#include "binding/addon.h"
#include "binding/kernels.h"
#include "binding/loop.h"
#include "mosaic/argument_reader.h"

namespace mosaic::cuda {

namespace {

bool isDense(const View& view) {
  int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; axis--) {
    if (view.shape[axis] != 1 && view.stride[axis] != stride) return false;
    stride *= view.shape[axis];
  }
  return view.dtype == DType::Float32;
}

CUdeviceptr deviceAddress(const View& view) { return reinterpret_cast<uintptr_t>(view.data); }

/// Device memory for the duration of a copy.
class Staging {
 public:
  Staging(Device& device, size_t bytes, const char* operation) : memory_(device.memory()), bytes_(bytes) {
    address_ = memory_.allocate(bytes);
    if (address_ != 0) return;
    throw Failure(MOSAIC_FAILURE_OUT_OF_MEMORY, std::string(operation) + ": expected " + std::to_string(bytes) +
                                                    " bytes of GPU memory for a conversion, received none; dispose "
                                                    "tensors, or copy in parts or as dense float32");
  }
  ~Staging() { memory_.free(address_, bytes_); }
  Staging(const Staging&) = delete;
  CUdeviceptr address() const { return address_; }

 private:
  Memory& memory_;
  size_t bytes_;
  CUdeviceptr address_;
};

/// The Float32Array that is the only argument of a call.
struct FloatArray {
  float* data;
  size_t length;
  size_t bytes() const { return length * sizeof(float); }
};
FloatArray getFloatArray(napi_env env, napi_callback_info info, const char* operation) {
  size_t count = 1, length = 0;
  napi_value array;
  napi_typedarray_type type;
  void* data = nullptr;
  napi_get_cb_info(env, info, &count, &array, nullptr, nullptr);
  const napi_status status = napi_get_typedarray_info(env, array, &type, &length, &data, nullptr, nullptr);
  if (status != napi_ok || type != napi_float32_array) {
    throw std::runtime_error(std::string(operation) + ": expected a Float32Array, received a value of another type");
  }
  return {static_cast<float*>(data), length};
}

void upload(Device& device, const View& out, const std::shared_ptr<void>& host, size_t bytes) {
  if (isDense(out))
    return check(driver().memcpyHtoDAsync(deviceAddress(out), host.get(), bytes, device.stream()), "write");
  const Staging staging(device, bytes, "write");
  check(driver().memcpyHtoDAsync(staging.address(), host.get(), bytes, device.stream()), "write");
  copyOp(device, {out, makeDenseView(staging.address(), out)});
}

void download(Device& device, const View& x, const std::shared_ptr<void>& host, size_t bytes) {
  if (isDense(x)) return check(driver().memcpyDtoHAsync(host.get(), deviceAddress(x), bytes, device.stream()), "read");
  const Staging staging(device, bytes, "read");
  copyOp(device, {makeDenseView(staging.address(), x), x});
  check(driver().memcpyDtoHAsync(host.get(), staging.address(), bytes, device.stream()), "read");
}

/// Runs `body`. If it throws, keeps `host` until the copies are done that are enqueued already, because the memory is
/// reused once it has no owner.
template <class Body>
void retainIfFailed(Device& device, const std::shared_ptr<void>& host, Body body) {
  try {
    body();
  } catch (...) {
    device.retainUntilComplete(host);
    throw;
  }
}

// write(Float32Array): arguments = device, view. Values are copied before it returns. Returns 1 if the device failed,
// else 0.
napi_value write(napi_env env, napi_callback_info info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  return rethrowAsJsError(env, &device, [&]() -> napi_value {
    const FloatArray values = getFloatArray(env, info, "write");
    addon.arguments[0] = device.failure() ? 1 : 0;
    if (device.failure() || values.length == 0) return nullptr;
    const View out = ArgumentReader(addon.arguments + 1).view();
    const std::shared_ptr<void> host = device.pinnedCache().acquire(values.bytes());
    std::memcpy(host.get(), values.data, values.bytes());
    retainIfFailed(device, host, [&] { upload(device, out, host, values.bytes()); });
    device.retainUntilComplete(host);
    return nullptr;
  });
}

// read(Float32Array): arguments = device, completion, view. JavaScript keeps the array until the completion arrives.
napi_value read(napi_env env, napi_callback_info info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  return rethrowAsJsError(env, &device, [&]() -> napi_value {
    const FloatArray values = getFloatArray(env, info, "read");
    ArgumentReader args(addon.arguments + 1);
    const double completion = args.number();
    const View x = args.view();
    std::shared_ptr<void> host;
    if (values.length > 0 && !device.failure()) {
      host = device.pinnedCache().acquire(values.bytes());
      download(device, x, host, values.bytes());
    }
    const auto copyOut = [=, completions = addon.completions,
                          environment = addon.environment](const MosaicFailure* failure) {
      if (host && !failure) {
        const std::lock_guard lock(environment->mutex);
        if (environment->isAlive) std::memcpy(values.data, host.get(), values.bytes());
      }
      completions->complete(completion, failure);
    };
    retainIfFailed(device, host, [&] { device.onComplete(copyOut); });
    addon.completions->expect();
    return nullptr;
  });
}

}  // namespace

void exportTransfers(napi_env env, napi_value exports) {
  exportAll(env, exports, {{"write", write}, {"read", read}});
}

}  // namespace mosaic::cuda
