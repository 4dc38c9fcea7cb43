#include "device/device.h"

#include <cstdio>
#include <string>
#include <system_error>

#include "attention/attention.h"
#include "gemm/gemm.h"
#include "kernels/kernel_table.h"
#include "mosaic/thread.h"
#include "stream/stream.h"

namespace mosaic {

extern const Kernels kKernelsScalar;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2, kKernelsAvx512;
#elif defined(__aarch64__)
extern const Kernels kKernelsNeon, kKernelsNeonBf16;
#endif

namespace {

#if defined(__x86_64__)
/// Combines the AVX-512 kernels with the products of an instruction set that includes AVX-512.
template <Isa isa>
Kernels makeAvx512Kernels() {
  Kernels kernels = kKernelsAvx512;
  kernels.attend = [](const AttendArguments& args, Pool& pool) { attend(args, isa, pool); };
  kernels.attendBackward = [](const AttendBackwardArguments& args, Pool& pool) { attendBackward(args, isa, pool); };
  kernels.matmul = [](const MatmulArguments& args, Pool& pool) { matmul(args, isa, pool); };
  kernels.linear = [](const LinearArguments& args, Pool& pool) { linear(args, isa, pool); };
  return kernels;
}
#endif

}  // namespace

const Kernels& getKernels(Isa isa) {
#if defined(__x86_64__)
  static const Kernels avx512Bf16 = makeAvx512Kernels<Isa::Avx512Bf16>(), amx = makeAvx512Kernels<Isa::Amx>();
  if (isa == Isa::Amx) return amx;
  if (isa == Isa::Avx512Bf16) return avx512Bf16;
  if (isa == Isa::Avx512) return kKernelsAvx512;
  if (isa == Isa::Avx2) return kKernelsAvx2;
#elif defined(__aarch64__)
  if (isa == Isa::NeonBf16) return kKernelsNeonBf16;
  if (isa == Isa::Neon) return kKernelsNeon;
#endif
  (void)isa;
  return kKernelsScalar;
}

void throwIndexError(const char* kernel, float value, int64_t count) {
  char message[160];
  std::snprintf(message, sizeof message, "%s: expected integers from 0 to %lld, received %.9g", kernel,
                static_cast<long long>(count - 1), static_cast<double>(value));
  throw Failure(MOSAIC_FAILURE_DEVICE, message);
}

Device::Device(const DeviceOptions& options)
    : isa(options.isa),
      kernels(getKernels(options.isa)),
      pool_(std::make_unique<Pool>(options.threads, &scratchBytes_)),
      memory_(std::make_unique<Allocator>(options.memoryLimit, &scratchBytes_)) {}

std::shared_ptr<Device> Device::open(const DeviceOptions& options) {
  try {
    auto device = std::make_shared<Device>(options);
    // Detached, because joining would block the host. The thread keeps the device alive; `waitForExit` waits for its
    // end.
    startThread("mosaic-stream", [device] {
      device->stream.run();
      device->onThreadExit();
    }).detach();
    return device;
  } catch (const std::system_error& error) {
    const std::string threadCountText = std::to_string(options.threads);
    throw Failure(
        MOSAIC_FAILURE_DEVICE,
        "cpu: cannot create " + threadCountText + " threads: " + error.what() +
            "; request fewer threads (cpu({ threads }) or MOSAIC_THREADS), or raise the user's or container's limit");
  }
}

void Device::onThreadExit() {
  pool_.reset();
  memory_.reset();
  const std::lock_guard lock(mutex_);
  hasExited_ = true;
  exitedCondition_.notify_all();
}

void Device::releaseInOrder(Release&& release) {
  if (release.isEmpty()) return;
  enqueueEvenIfFailed(stream, "", [released = std::move(release)](const MosaicFailure*) {});
}

void Device::poisonEndInOrder([[maybe_unused]] const Block& block, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  // In stream order, because earlier work may still use these addresses for the previous block.
  enqueueEvenIfFailed(stream, "", [data = block.data, bytes, size = block.size](const MosaicFailure*) {
    poisonEnd(data, bytes, size);
  });
#endif
}

void Device::close() { stream.close(); }

bool Device::waitForExit(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return exitedCondition_.wait_until(lock, deadline, [this] { return hasExited_; });
}

}  // namespace mosaic
