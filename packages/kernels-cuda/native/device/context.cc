#include "device/context.h"

#include <algorithm>

#include "mosaic/failure.h"

namespace mosaic::cuda {

namespace {

/// The minimum compute capability of the instructions that kernels use: Ampere.
constexpr int kMinCapability = 80;

void throwIfOrdinalInvalid(int ordinal) {
  int count = 0;
  check(driver().deviceGetCount(&count), "counting GPUs");
  if (ordinal >= 0 && ordinal < count) return;
  throw Failure(MOSAIC_FAILURE_DEVICE,
                "cuda({ index }): expected the index of a visible GPU, from 0 to " +
                    std::to_string(count - 1) + ", received " + std::to_string(ordinal) +
                    "; check CUDA_VISIBLE_DEVICES, start at most one rank per GPU (LOCAL_RANK is the default), or "
                    "share one GPU between ranks: cuda({ index: 0 })");
}

}  // namespace

Context::Context(int ordinal) {
  const Driver& cuda = driver();
  throwIfOrdinalInvalid(ordinal);
  check(cuda.deviceGet(&device_, ordinal), "opening the GPU");
  char deviceName[256] = "";
  cuda.deviceGetName(deviceName, sizeof deviceName, device_);
  name_ = deviceName;
  int major = 0, minor = 0;
  cuda.deviceGetAttribute(&major, COMPUTE_CAPABILITY_MAJOR, device_);
  cuda.deviceGetAttribute(&minor, COMPUTE_CAPABILITY_MINOR, device_);
  cuda.deviceGetAttribute(&multiprocessors_, MULTIPROCESSOR_COUNT, device_);
  int maxDims[] = {maxGridDim_, maxGridDim_};
  cuda.deviceGetAttribute(&maxDims[0], MAX_GRID_DIM_Y, device_);
  cuda.deviceGetAttribute(&maxDims[1], MAX_GRID_DIM_Z, device_);
  maxGridDim_ = std::min(maxDims[0], maxDims[1]);
  cuda.deviceGetAttribute(&maxSharedBytes_, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device_);
  capability_ = major * 10 + minor;
  if (capability_ < kMinCapability) {
    throw Failure(MOSAIC_FAILURE_DEVICE, "cuda:" + std::to_string(ordinal) +
                                             ": expected a GPU of compute capability 8.0 (Ampere) or newer, received " +
                                             name_ + " with " + std::to_string(major) + "." + std::to_string(minor) +
                                             "; select a different GPU by its index, or use the CPU device");
  }
  check(cuda.primaryCtxRetain(&context_, device_), "creating a context on the GPU");
  enter();
}

Context::~Context() { driver().primaryCtxRelease(device_); }

Event::Event(std::shared_ptr<const Context> context, unsigned flags) : context_(std::move(context)) {
  check(driver().eventCreate(&event_, flags), "creating an event");
}

Event::~Event() {
  context_->enter();
  driver().eventDestroy(event_);
}

}  // namespace mosaic::cuda
