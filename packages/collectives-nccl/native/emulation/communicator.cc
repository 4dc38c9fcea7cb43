#include "emulation/communicator.h"

#include <dlfcn.h>
#include <unistd.h>

#include <ctime>

namespace emulated_nccl {

namespace {

using LaunchHostFunc = int (*)(void* stream, void (*function)(void*), void* data);

LaunchHostFunc launchHostFunc() {
  static const auto found = [] {
    const std::string configuredPath = setting("MOSAIC_CUDA_LIBRARY");
    void* driver = dlopen(configuredPath.empty() ? "libcuda.so.1" : configuredPath.c_str(), RTLD_NOW);
    return driver ? reinterpret_cast<LaunchHostFunc>(dlsym(driver, "cuLaunchHostFunc")) : nullptr;
  }();
  return found;
}

struct Launch {
  std::shared_ptr<Communicator> communicator;
  Work work;
  bool hangs, isFailing;
};

void execute(void* data) {
  const std::unique_ptr<Launch> launch(static_cast<Launch*>(data));
  Communicator& communicator = *launch->communicator;
  if (launch->isFailing) communicator.state = failsBySystem() ? ncclSystemError : ncclRemoteError;
  if (launch->hangs || launch->isFailing) communicator.await([] { return false; });
  else if (!launch->work.run(communicator.stopped)) {
    communicator.state = ncclRemoteError;
    communicator.await([] { return false; });
  }
  communicator.pendingLaunches--;
}

}  // namespace

bool Communicator::await(const std::function<bool()>& condition) const {
  while (!stopped) {
    if (condition()) return true;
    const timespec interval{0, 100'000};
    nanosleep(&interval, nullptr);
  }
  return false;
}

ncclResult_t Communicator::runAsync(std::function<ncclResult_t()> job) {
  if (blocking) return state = job();
  if (asyncThread.joinable()) asyncThread.join();
  state = ncclInProgress;
  asyncThread = std::thread([this, job = std::move(job)] {
    const ncclResult_t result = job();
    ncclResult_t expected = ncclInProgress;  // an error may have come meanwhile, and stays
    if (!stopped) state.compare_exchange_strong(expected, result);
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
      const ConnectionKey key{hashOf(name), rank < peer ? rank : peer, collective};
      const int fd = rank < peer ? connectTo(endpoints[peer], key, stopped) : listener->accept(key, stopped);
      if (fd < 0) return false;
      connections[peer][collective] = fd;
    }
  }
  return true;
}

Lane Communicator::lane(uint32_t from, uint32_t to, bool collective) const {
  const int fd = connections[from == rank ? to : from][collective];
  return fd >= 0 ? Lane{nullptr, fd} : Lane{&region->channel(from, to, collective), -1};
}

ncclResult_t Communicator::attach() {
  region = Region::open(name, size);
  if (!region) return ncclSystemError;
  if (!connectPeers()) return stopped ? ncclInProgress : ncclSystemError;
  auto& attached = region->header().attached;
  attached++;
  if (!await([&] { return attached >= size && !isHangConfigured("init"); })) return ncclInProgress;
  region->unlink();
  return ncclSuccess;
}

ncclResult_t Communicator::launch(Work work, void* stream) {
  if (!launchHostFunc()) return ncclUnhandledCudaError;
  const int number = ++launches;
  // An error of the system is one host's.
  const bool isFailing = number == failingLaunch() && (rank == 0 || !failsBySystem());
  auto* launch = new Launch{shared_from_this(), std::move(work), number == hangingLaunch(), isFailing};
  pendingLaunches++;
  if (launchHostFunc()(stream, execute, launch) != 0) return ncclUnhandledCudaError;
  return ncclSuccess;
}

void Communicator::stop() {
  stopped = true;
  if (asyncThread.joinable()) asyncThread.join();
  while (pendingLaunches > 0) sched_yield();
}

}  // namespace emulated_nccl
