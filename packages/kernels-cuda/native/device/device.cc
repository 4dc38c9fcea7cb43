#include "device/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mosaic/thread.h"

namespace mosaic::cuda {

void LaunchHistory::record(const char* kernel) {
  const std::lock_guard lock(mutex_);
  kernels_[startedCount_++ % kCapacity] = kernel;
}

uint64_t LaunchHistory::count() const {
  const std::lock_guard lock(mutex_);
  return startedCount_;
}

void LaunchHistory::markCompleted(uint64_t count) {
  const std::lock_guard lock(mutex_);
  completedCount_ = std::max(completedCount_, count);
}

std::string LaunchHistory::describePending() const {
  const std::lock_guard lock(mutex_);
  const uint64_t runningCount = startedCount_ - completedCount_, shownCount = std::min(runningCount, kCapacity);
  std::string names;
  for (uint64_t i = startedCount_ - shownCount; i < startedCount_; i++) {
    names += (names.empty() ? "" : ", ") + std::string(kernels_[i % kCapacity]);
  }
  if (runningCount <= 1) return names;
  const std::string suffix = runningCount > shownCount ? " (the last of " + std::to_string(runningCount) + ")" : "";
  return "one of " + names + suffix;
}

namespace {

std::string describeError(CUresult code) {
  const char *name = nullptr, *text = nullptr;
  driver().getErrorName(code, &name);
  driver().getErrorString(code, &text);
  return std::string(text ? text : "unknown error") + " (" + (name ? name : "code " + std::to_string(code)) + ")";
}

std::string describeBadIndex(const BadIndex& badIndex) {
  constexpr const char* kNames[] = {"gatherRows", "scatterAddRows", "crossEntropy", "crossEntropyBackward"};
  char message[160];
  std::snprintf(message, sizeof message, "%s: expected integers from 0 to %lld, received %.9g",
                kNames[static_cast<int>(badIndex.kernel)], static_cast<long long>(badIndex.count - 1),
                double{badIndex.value});
  return message;
}

/// Whether to use Hopper's kernels. MOSAIC_CUDA_FAMILY=portable selects those that every GPU since Ampere can run, so
/// that both can be compared on one GPU.
bool shouldUseHopperKernels(int capability) {
  constexpr int kHopperCapability = 90;  // exactly this one: later GPUs do not support the sm_90a instructions
  const char* family = std::getenv("MOSAIC_CUDA_FAMILY");
  const std::string requestedFamily = family ? family : "";
  if (requestedFamily.empty()) return capability == kHopperCapability;
  if (requestedFamily == "portable") return false;
  if (requestedFamily == "hopper" && capability == kHopperCapability) return true;
  throw Failure(MOSAIC_FAILURE_DEVICE,
                "MOSAIC_CUDA_FAMILY: expected portable" +
                    std::string(capability == kHopperCapability ? " or hopper" : " on this GPU") + ", received " +
                    requestedFamily);
}

}  // namespace

Device::Stream::Stream() { check(driver().streamCreate(&stream_, STREAM_NON_BLOCKING), "creating a stream"); }

Device::Stream::~Stream() { driver().streamDestroy(stream_); }

Device::Device(const DeviceOptions& options)
    : context_(std::make_shared<const Context>(options.ordinal)),
      module_(*context_),
      memory_(std::make_unique<Memory>(*context_, stream(), options.memoryLimit)),
      blas_(std::make_unique<Blas>(*memory_, BlasOptions{context_->capability(), options.allowsTf32, stream()})),
      name_("cuda:" + std::to_string(options.ordinal) + " (" + context_->name() + ")"),
      hasHopperKernels_(shouldUseHopperKernels(context_->capability())) {
  const CUdeviceptr badIndexAddress = memory_->allocatePersistent(sizeof(BadIndex));
  if (badIndexAddress == 0) {
    throw Failure(MOSAIC_FAILURE_OUT_OF_MEMORY, name_ + ": cannot allocate " + std::to_string(sizeof(BadIndex)) +
                                                    " bytes of GPU memory; end other processes that use the GPU");
  }
  badIndex_ = reinterpret_cast<BadIndex*>(static_cast<uintptr_t>(badIndexAddress));
  check(driver().memsetD8Async(badIndexAddress, 0, sizeof(BadIndex), stream()), "clearing memory");
  reduceRanksKernel_ = module_.function("reduceRanks", 0);
  eventWatcher_ = std::make_unique<EventWatcher>(context_);
}

Device::~Device() {
  enter();
  eventWatcher_.reset();
}

void Device::close(std::unique_ptr<Device> device) {
  try {
    // A separate thread waits for the stream, so that the calling thread does not.
    startThread("mosaic-close", [device = std::move(device)]() mutable { device.reset(); }).detach();
  } catch (const std::exception&) {
    // The system could not create a thread. The device was destroyed on the calling thread, with the body that owned
    // it.
  }
}

void Device::launchKernel(const char* kernel, const Grid& grid, void* parameters) {
  const auto& [blocks, threads, sharedBytes] = grid;
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  const CUfunction function = module_.function(kernel, sharedBytes);
  void* arguments[] = {parameters};
  run(kernel, [&] {
    check(driver().launchKernel(function, blocks.x, blocks.y, blocks.z, threads.x, threads.y, threads.z, sharedBytes,
                                stream(), arguments, nullptr),
          kernel);
  });
}

void Device::onComplete(Callback callback) {
  if (failure()) return eventWatcher_->onComplete(stream(), [this, callback](CUresult) { callback(failure()); });
  const std::shared_ptr<void> pinnedMemory = pinnedCache_.acquire(sizeof(BadIndex));
  auto& hostBadIndex = *new (pinnedMemory.get()) BadIndex{};
  // An error of this copy is reported by the wait.
  driver().memcpyDtoHAsync(&hostBadIndex, reinterpret_cast<uintptr_t>(badIndex_), sizeof(BadIndex), stream());
  eventWatcher_->onComplete(stream(),
                            [this, callback, pinnedMemory, &hostBadIndex, launches = history_.count()](CUresult code) {
                              markCompletedOrFail(code, hostBadIndex, launches);
                              callback(failure());
                            });
}

void Device::markCompletedOrFail(CUresult code, const BadIndex& badIndex, uint64_t launches) {
  if (code != CUDA_SUCCESS) return failWith(code);
  if (badIndex.found) return fail(MOSAIC_FAILURE_DEVICE, describeBadIndex(badIndex));
  history_.markCompleted(launches);
}

void Device::retainUntilComplete(std::shared_ptr<void> memory) {
  eventWatcher_->onComplete(stream(), [memory = std::move(memory)](CUresult) {});
}

void Device::trim() {
  eventWatcher_->onComplete(stream(), [this](CUresult) { memory_->trim(); });
}

void Device::fail(MosaicFailureCode code, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (hasFailed_) return;
  failure_ = failureRecord(code, message);
  hasFailed_.store(true, std::memory_order_release);
}

void Device::failWith(CUresult code) {
  const std::string pendingKernelNames = history_.describePending();
  fail(MOSAIC_FAILURE_DEVICE,
       name_ + ": " + (pendingKernelNames.empty() ? "work" : pendingKernelNames) + " failed: " + describeError(code) +
           "; the CUDA context is unusable: restart the process, with CUDA_LAUNCH_BLOCKING=1 to identify the kernel, "
           "or under compute-sanitizer");
}

Failure Device::describeFailure(const CallError& error) {
  // After a kernel has failed, every call on the context fails.
  const CUresult state = driver().streamQuery(stream());
  const bool isContextLost = state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY;
  if (!isContextLost && !failure()) return {MOSAIC_FAILURE_DEVICE, name_ + ": " + error.what()};
  failWith(state);
  return {static_cast<MosaicFailureCode>(failure_.code), failure_.message};
}

void Device::startTrace() {
  trace_ = std::make_shared<Trace>(context_, stream());
}

void Device::stopTrace(std::function<void(std::vector<TraceEntry>)> callback) {
  const std::shared_ptr<Trace> trace = std::move(trace_);
  trace_ = nullptr;
  eventWatcher_->onComplete(stream(), [trace, callback](CUresult code) {
    callback(trace && code == CUDA_SUCCESS ? trace->entries() : std::vector<TraceEntry>());
  });
}

}  // namespace mosaic::cuda
