#include "device/device.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "device/image.h"

namespace mosaic::cuda {

namespace {

int64_t monotonicNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Oldest GPUs that the kernels' instructions exist on: Ampere.
constexpr int kOldestCapability = 80;

}  // namespace

Device::Device(int ordinal, size_t memoryLimit) : limit_(memoryLimit) {
  const Driver& cuda = driver();
  int count = 0;
  check(cuda.deviceGetCount(&count), "counting GPUs");
  if (ordinal < 0 || ordinal >= count) {
    throw Failure(MOSAIC_FAILURE_DEVICE, "cuda:" + std::to_string(ordinal) + ": GPUs are numbered from 0, and " +
                                             std::to_string(count) + " can be seen; check CUDA_VISIBLE_DEVICES");
  }
  check(cuda.deviceGet(&device_, ordinal), "opening the GPU");
  char text[256] = "";
  cuda.deviceGetName(text, sizeof text, device_);
  name_ = text;
  int major = 0, minor = 0;
  cuda.deviceGetAttribute(&major, COMPUTE_CAPABILITY_MAJOR, device_);
  cuda.deviceGetAttribute(&minor, COMPUTE_CAPABILITY_MINOR, device_);
  cuda.deviceGetAttribute(&multiprocessors_, MULTIPROCESSOR_COUNT, device_);
  cuda.deviceGetAttribute(&mostSharedBytes_, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device_);
  capability_ = major * 10 + minor;
  if (capability_ < kOldestCapability) {
    throw Failure(MOSAIC_FAILURE_DEVICE, name_ + " has compute capability " + std::to_string(major) + "." +
                                             std::to_string(minor) + ", needed is 8.0 (Ampere) or newer");
  }
  check(cuda.primaryCtxRetain(&context_, device_), "making a context");
  enter();
  check(cuda.streamCreate(&stream_, STREAM_NON_BLOCKING), "making a stream");
  load();
  // Freed memory stays with the pool, to be handed out again in stream order.
  check(cuda.deviceGetDefaultMemPool(&pool_, device_), "finding the memory pool");
  uint64_t keep = UINT64_MAX;
  check(cuda.memPoolSetAttribute(pool_, MEMPOOL_RELEASE_THRESHOLD, &keep), "setting up the memory pool");
  CUdeviceptr bad = 0;
  check(cuda.memAllocAsync(&bad, sizeof(BadIndex), stream_), "taking memory");
  check(cuda.memsetD8Async(bad, 0, sizeof(BadIndex), stream_), "clearing memory");
  badIndex_ = reinterpret_cast<BadIndex*>(static_cast<uintptr_t>(bad));
  watcher_ = std::make_unique<Watcher>(context_);
}

Device::~Device() {
  watcher_.reset();
  enter();
  const Driver& cuda = driver();
  for (const CUdeviceptr address : live_) cuda.memFreeAsync(address, stream_);
  cuda.memFreeAsync(reinterpret_cast<uintptr_t>(badIndex_), stream_);
  cuda.streamSynchronize(stream_);
  cuda.streamDestroy(stream_);
  cuda.moduleUnload(module_);
  cuda.primaryCtxRelease(device_);
}

void Device::load() {
  const void* image = imageOfDriver() ? imageOfDriver() : kernelImage();
  if (!image) {
    throw Failure(MOSAIC_FAILURE_DEVICE,
                  "@mosaic/kernels-cuda was built without kernels, for nvcc was not found. Install the CUDA Toolkit, "
                  "12 or newer, put nvcc on the PATH, and run `npm run build:native` in packages/kernels-cuda");
  }
  const CUresult code = driver().moduleLoadData(&module_, image);
  if (code == CUDA_ERROR_NO_BINARY_FOR_GPU || code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
    throw Failure(MOSAIC_FAILURE_DEVICE, "no kernels for " + name_ + " that this driver, for CUDA " +
                                             versionText(driverVersion()) + ", can load; update NVIDIA's driver");
  }
  check(code, "loading kernels");
}

CUfunction Device::functionOf(const char* kernel, unsigned sharedBytes) {
  constexpr unsigned kStandard = 48 * 1024;  // more must be asked for
  auto [place, isNew] = functions_.try_emplace(kernel, nullptr);
  if (isNew) check(driver().moduleGetFunction(&place->second, module_, kernel), kernel);
  if (sharedBytes > kStandard) {
    const auto bytes = static_cast<int>(sharedBytes);
    check(driver().funcSetAttribute(place->second, MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes), kernel);
  }
  return place->second;
}

void Device::launchBytes(const char* kernel, const Grid& grid, void* parameters) {
  const auto& [blocks, threads, sharedBytes] = grid;
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  const Driver& cuda = driver();
  const CUfunction function = functionOf(kernel, sharedBytes);
  Timed timed{kernel, nullptr, nullptr};
  if (tracing_) {
    cuda.eventCreate(&timed.start, 0);
    cuda.eventCreate(&timed.end, 0);
    cuda.eventRecord(timed.start, stream_);
  }
  void* arguments[] = {parameters};
  check(cuda.launchKernel(function, blocks.x, blocks.y, blocks.z, threads.x, threads.y, threads.z, sharedBytes, stream_,
                          arguments, nullptr),
        kernel);
  if (!tracing_) return;
  cuda.eventRecord(timed.end, stream_);
  timed_.push_back(timed);
}

CUdeviceptr Device::allocate(size_t bytes) {
  if (limit_ > 0 && allocated_ + bytes > limit_) return 0;
  CUdeviceptr address = 0;
  const CUresult code = driver().memAllocAsync(&address, std::max<size_t>(bytes, 1), stream_);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return 0;
  check(code, "taking memory");
  live_.insert(address);
  allocated_ += bytes;
  peak_ = std::max(peak_.load(), allocated_.load());
  return address;
}

void Device::free(CUdeviceptr address, size_t bytes) {
  if (live_.erase(address) == 0) return;
  driver().memFreeAsync(address, stream_);
  allocated_ -= bytes;
}

MemoryStats Device::memory() const {
  uint64_t reserved = 0;
  driver().memPoolGetAttribute(pool_, MEMPOOL_RESERVED_MEM_CURRENT, &reserved);
  return {allocated_, std::max<size_t>(reserved, allocated_), peak_};
}

void Device::trim() { driver().memPoolTrimTo(pool_, 0); }

void Device::fail(MosaicFailureCode code, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  failure_.code = code;
  std::strncpy(failure_.message, message.c_str(), sizeof failure_.message - 1);
  failed_.store(true, std::memory_order_release);
}

void Device::startTrace() {
  tracing_ = true;
  driver().eventCreate(&traceBegin_, 0);
  driver().streamSynchronize(stream_);
  driver().eventRecord(traceBegin_, stream_);
  driver().eventSynchronize(traceBegin_);
  traceBeginTime_ = monotonicNanoseconds();
}

std::vector<TraceEntry> Device::stopTrace() {
  tracing_ = false;
  std::vector<TraceEntry> entries;
  for (const auto& [name, start, end] : timed_) {
    float from = 0, to = 0;
    driver().eventElapsedTime(&from, traceBegin_, start);
    driver().eventElapsedTime(&to, traceBegin_, end);
    entries.push_back({name, traceBeginTime_ + static_cast<int64_t>(double{from} * 1e6),
                       traceBeginTime_ + static_cast<int64_t>(double{to} * 1e6)});
    driver().eventDestroy(start);
    driver().eventDestroy(end);
  }
  timed_.clear();
  if (traceBegin_) driver().eventDestroy(traceBegin_);
  traceBegin_ = nullptr;
  return entries;
}

}  // namespace mosaic::cuda
