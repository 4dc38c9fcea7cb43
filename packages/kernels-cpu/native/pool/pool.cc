#include "pool/pool.h"

#include <algorithm>
#include <new>

#include "mosaic/thread.h"
#include "pool/pause.h"

namespace mosaic {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMinBlockBytes = size_t{1} << 20;

}  // namespace

Arena::~Arena() {
  if (reservedBytes_) reservedBytes_->fetch_sub(capacity());
  for (const Block& block : blocks_) ::operator delete(block.data, std::align_val_t{kAlignment});
}

void Arena::reset() {
  currentBlockIndex_ = 0;
  usedBytes_ = 0;
}

size_t Arena::capacity() const {
  size_t totalBytes = 0;
  for (const Block& block : blocks_) totalBytes += block.size;
  return totalBytes;
}

void* Arena::allocateBytes(size_t size) {
  size = (size + kAlignment - 1) / kAlignment * kAlignment;
  while (currentBlockIndex_ < blocks_.size() && usedBytes_ + size > blocks_[currentBlockIndex_].size) {
    ++currentBlockIndex_;
    usedBytes_ = 0;
  }
  if (currentBlockIndex_ == blocks_.size()) {
    // doubling: few blocks, little unused memory
    const size_t blockSize = std::max({size, kMinBlockBytes, capacity()});
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back({static_cast<std::byte*>(::operator new(blockSize, std::align_val_t{kAlignment})), blockSize});
    if (reservedBytes_) reservedBytes_->fetch_add(blockSize);
  }
  void* memory = blocks_[currentBlockIndex_].data + usedBytes_;
  usedBytes_ += size;
  return memory;
}

namespace {

constexpr uint64_t kOpenBit = uint64_t{1} << 31;
constexpr uint64_t kGenerationUnit = uint64_t{1} << 32;
constexpr uint64_t kWorkerCountMask = kOpenBit - 1;
constexpr int64_t kMaxSpinNs = 50'000;  // ns; waking a parked thread costs 20–25 µs

}  // namespace

Pool::Pool(int threads, std::atomic<size_t>* scratch) {
  for (int i = 0; i <= std::max(threads, 1); ++i) arenas_.push_back(std::make_unique<Arena>(scratch));
  workers_.reserve(static_cast<size_t>(std::max(threads - 1, 0)));
  try {
    for (int i = 1; i < threads; ++i) workers_.push_back(startThread("mosaic-pool", [this, i] { workerMain(i); }));
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  isStopped_.store(true);
  wakeups_.fetch_add(1);
  wakeups_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run(int64_t tasks, TaskFunction call, void* context) {
  function_ = call;
  context_ = context;
  tasks_ = tasks;
  nextTask_.store(0, std::memory_order_relaxed);
  const bool isSerial = workers_.empty() || tasks <= 1;
  if (!isSerial) {
    state_.store((state_.load() & ~(kGenerationUnit - 1)) + kGenerationUnit + kOpenBit);
    wakeups_.fetch_add(1);
    wakeups_.notify_all();
  }
  runTasks(0);
  if (!isSerial) {
    uint64_t observedState = state_.fetch_and(~kOpenBit) & ~kOpenBit;  // no more threads can enter
    while ((observedState & kWorkerCountMask) != 0) {
      const auto hasNoWorkers = [&] { return ((observedState = state_.load()) & kWorkerCountMask) == 0; };
      if (!spinFor(kMaxSpinNs, hasNoWorkers)) state_.wait(observedState);
    }
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pool::runTasks(int worker) {
  for (int64_t task; (task = nextTask_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
    try {
      function_(context_, task, worker);
    } catch (...) {
      nextTask_.store(tasks_, std::memory_order_relaxed);
      const std::lock_guard lock(errorMutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

bool Pool::tryEnterLoop(uint64_t observedState) {
  while ((observedState & kOpenBit) != 0) {
    if (state_.compare_exchange_weak(observedState, observedState + 1)) return true;
  }
  return false;
}

void Pool::leaveLoop() {
  if ((state_.fetch_sub(1) - 1) << 32 == 0) state_.notify_all();  // closed and empty: the caller may be parked
}

void Pool::workerMain(int worker) {
  uint32_t observedState = 0;
  for (;;) {
    const auto hasTasks = [&] { return wakeups_.load() != observedState; };
    if (!spinFor(kMaxSpinNs, hasTasks)) wakeups_.wait(observedState);
    observedState = wakeups_.load();
    if (isStopped_.load()) return;
    if (tryEnterLoop(state_.load())) {
      runTasks(worker);
      leaveLoop();
    }
  }
}

}  // namespace mosaic
