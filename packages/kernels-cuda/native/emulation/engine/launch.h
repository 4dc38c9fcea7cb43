// Runs a grid block by block, or several blocks at once if the config has several workers.
#pragma once

#include <mutex>
#include <thread>

#include "engine/collective.h"
#include "engine/memory.h"
#include "engine/emulator.h"

namespace emulated {

constexpr size_t kMaxSharedBytes = 227 * 1024;

/// Throws the KernelError of the first block that failed.
template <class KernelFunction, class Parameters>
void launch(KernelFunction kernel, const Launch& at, const Parameters& parameters) {
  const dim3 grid(at.grid.x, at.grid.y, at.grid.z), shape(at.block.x, at.block.y, at.block.z);
  const unsigned threads = shape.x * shape.y * shape.z;
  if (threads % 32 || threads < 32 || threads > 1024)
    throw KernelError("launch: expected blocks of 32 to 1024 threads, a multiple of 32, received " +
                      std::to_string(threads));
  if (at.sharedBytes > kMaxSharedBytes)
    throw KernelError("launch: expected at most " + std::to_string(kMaxSharedBytes) +
                      " bytes of shared memory, received " + std::to_string(at.sharedBytes));
  const int64_t blockCount = int64_t{grid.x} * grid.y * grid.z;
  std::atomic<int64_t> nextBlock{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto runBlocks = [&] {
    Block threadBlock;
    threadBlock.grid = grid;
    threadBlock.shape = shape;
    threadBlock.sharedMemory.resize(at.sharedBytes);
    threadBlock.shadow.resize(at.sharedBytes / 4 + 1);
    threadBlock.body = [&] { kernel(parameters); };
    for (int64_t i; (i = nextBlock++) < blockCount;) {
      const auto linearIndex = static_cast<unsigned>(i);
      try {
        threadBlock.run(dim3(linearIndex % grid.x, linearIndex / grid.x % grid.y, linearIndex / (grid.x * grid.y)));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        nextBlock = blockCount;
      }
    }
    stats.switches += threadBlock.switches;
    stats.globalBytes += threadBlock.globalBytes;
    stats.sharedBytes += threadBlock.sharedBytes;
  };
  std::vector<std::thread> helperThreads;
  for (int i = 1; i < config.workers; i++) helperThreads.emplace_back(runBlocks);
  runBlocks();
  for (std::thread& helper : helperThreads) helper.join();
  if (error) std::rethrow_exception(error);
}

/// Fails unless the global memory that a kernel accesses is allocated on the device.
inline void checkGlobal(const void* pointer, size_t bytes, size_t alignment, const char* access) {
  if (const size_t remainder = reinterpret_cast<uintptr_t>(pointer) % alignment)
    fail(std::string("misaligned global ") + access + ": expected an address that is a multiple of " +
         std::to_string(alignment) + ", received remainder " + std::to_string(remainder));
  if (!deviceMemory().contains(pointer, bytes))
    fail(std::string("global ") + access + " of " + std::to_string(bytes) + " bytes out of bounds of its allocation");
  block->globalBytes += bytes;
}

}  // namespace emulated

/// Registers `kernel(const Parameters&)` by name with the emulated driver.
#define EMULATED_KERNEL(kernel, Parameters)                                                                          \
  static const emulated::Registration kernel##_registered{                                                           \
      #kernel, {&emulated::copyParameters<Parameters>, [](const emulated::Launch& launch) {                          \
                  emulated::launch(kernel, launch, *static_cast<const Parameters*>(launch.parameters));              \
                }}};
