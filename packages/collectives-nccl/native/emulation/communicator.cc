#include "emulation/communicator.h"

#include <dlfcn.h>
#include <unistd.h>

#include <ctime>

namespace emulated_nccl {

namespace {

using LaunchHostFunc = int (*)(void* stream, void (*function)(void*), void* data);

LaunchHostFunc getLaunchHostFunc() {
  static const auto function = [] {
    const std::string configuredPath = getSetting("MOSAIC_CUDA_LIBRARY");
    void* driver = dlopen(configuredPath.empty() ? "libcuda.so.1" : configuredPath.c_str(), RTLD_NOW);
    return driver ? reinterpret_cast<LaunchHostFunc>(dlsym(driver, "cuLaunchHostFunc")) : nullptr;
  }();
  return function;
}

struct Launch {
  std::shared_ptr<Communicator> communicator;
  Work work;
  bool isHanging, isFailing;
};

void execute(void* data) {
  const std::unique_ptr<Launch> launch(static_cast<Launch*>(data));
  Communicator& communicator = *launch->communicator;
  if (launch->isFailing) communicator.state = isSystemErrorConfigured() ? ncclSystemError : ncclRemoteError;
  if (launch->isHanging || launch->isFailing) communicator.waitUntil([] { return false; });
  else if (!launch->work.run(communicator.isStopped)) {
    communicator.state = ncclRemoteError;
    communicator.waitUntil([] { return false; });
  }
  communicator.pendingLaunchCount--;
}

}  // namespace

bool Communicator::waitUntil(const std::function<bool()>& condition) const {
  while (!isStopped) {
    if (condition()) return true;
    const timespec interval{0, 100'000};
    nanosleep(&interval, nullptr);
  }
  return false;
}

ncclResult_t Communicator::runAsync(std::function<ncclResult_t()> job) {
  if (isBlocking) return state = job();
  if (asyncThread.joinable()) asyncThread.join();
  state = ncclInProgress;
  asyncThread = std::thread([this, job = std::move(job)] {
    const ncclResult_t result = job();
    ncclResult_t expected = ncclInProgress;  // an error that was set meanwhile is kept
    if (!isStopped) state.compare_exchange_strong(expected, result);
  });
  return ncclInProgress;
}

Communicator::~Communicator() {
  for (const auto& pair : connections) {
    for (const int fd : pair) {
      if (fd >= 0) close(fd);
    }
  }
}

bool Communicator::connectPeers() {
  connections.assign(size, {-1, -1});
  for (uint32_t peer = 0; peer < size; peer++) {
    if (endpoints[peer].host == endpoints[rank].host) continue;
    for (const uint32_t collective : {0u, 1u}) {
      const ConnectionKey key{hashText(name), rank < peer ? rank : peer, collective};
      const int fd = rank < peer ? connectTo(endpoints[peer], key, isStopped) : listener->accept(key, isStopped);
      if (fd < 0) return false;
      connections[peer][collective] = fd;
    }
  }
  return true;
}

Lane Communicator::getLane(uint32_t from, uint32_t to, bool isCollective) const {
  const int fd = connections[from == rank ? to : from][isCollective];
  return fd >= 0 ? Lane{nullptr, fd} : Lane{&region->channel(from, to, isCollective), -1};
}

ncclResult_t Communicator::attach() {
  region = Region::open(name, size);
  if (!region) return ncclSystemError;
  if (!connectPeers()) return isStopped ? ncclInProgress : ncclSystemError;
  auto& attachedRankCount = region->header().attachedRankCount;
  attachedRankCount++;
  if (!waitUntil([&] { return attachedRankCount >= size && !isHangConfigured("init"); })) return ncclInProgress;
  region->unlink();
  return ncclSuccess;
}

ncclResult_t Communicator::launch(Work work, void* stream) {
  if (!getLaunchHostFunc()) return ncclUnhandledCudaError;
  const int launchNumber = ++launchCount;
  // A system error occurs on one rank only.
  const bool isFailing = launchNumber == failingLaunchNumber() && (rank == 0 || !isSystemErrorConfigured());
  auto* launch = new Launch{shared_from_this(), std::move(work), launchNumber == hangingLaunchNumber(), isFailing};
  pendingLaunchCount++;
  if (getLaunchHostFunc()(stream, execute, launch) != 0) return ncclUnhandledCudaError;
  return ncclSuccess;
}

void Communicator::stop() {
  isStopped = true;
  if (asyncThread.joinable()) asyncThread.join();
  while (pendingLaunchCount > 0) sched_yield();
}

}  // namespace emulated_nccl
