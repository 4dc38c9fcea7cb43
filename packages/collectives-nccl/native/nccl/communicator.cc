// Calls NCCL to make, split, finalize and abort a communicator: ncclCommInitRankConfig, ncclCommSplit,
// ncclCommFinalize, ncclCommAbort. NCCL's collectives are called in transport.cc.
#include "nccl/communicator.h"

#include <system_error>
#include <thread>
#include <utility>

#include "mosaic/thread.h"

namespace mosaic::nccl {

namespace {

ncclConfig_t makeConfig(const Settings& settings) {
  const auto toNcclSetting = [](int value) { return value > 0 ? value : kUndefined; };
  // NCCL compares minCTAs with maxCTAs even if maxCTAs is undefined (INT_MIN), and would reject minCTAs alone.
  const int maxCtas = settings.maxCtas > 0 || settings.minCtas <= 0 ? settings.maxCtas : kMaxCtas;
  ncclConfig_t config{};
  config.size = sizeof config;
  config.magic = kConfigMagic;
  config.version = kMinVersion;
  config.blocking = 0;
  config.cgaClusterSize = kUndefined;
  config.minCTAs = toNcclSetting(settings.minCtas);
  config.maxCTAs = toNcclSetting(maxCtas);
  config.netName = settings.netName.empty() ? nullptr : settings.netName.c_str();
  config.splitShare = kUndefined;
  return config;
}

const char* resultName(ncclResult_t result) {
  static const char* const names[] = {"ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError",
                                      "ncclInternalError",   "ncclInvalidArgument",    "ncclInvalidUsage",
                                      "ncclRemoteError",     "ncclInProgress"};
  return static_cast<size_t>(result) < std::size(names) ? names[result] : "an unknown error";
}

}  // namespace

void Communicator::init(uint32_t size, const ncclUniqueId& id, uint32_t rank, const Settings& settings) {
  ncclConfig_t config = makeConfig(settings);
  const auto result = library().functions.commInitRankConfig(&comm_, static_cast<int>(size), id,
                                                             static_cast<int>(rank), &config);
  check(result, *this);
}

void Communicator::split(Communicator& child, int color, int key, const Settings& settings) {
  ncclConfig_t config = makeConfig(settings);
  const auto result = library().functions.commSplit(comm_, color, key, &child.comm_, &config);
  check(result, *this);
  child.parent_ = this;
}

ncclResult_t Communicator::state() {
  if (parent_) {
    if (const ncclResult_t parentState = parent_->state(); parentState != ncclSuccess) return parentState;
    parent_ = nullptr;
  }
  ncclResult_t error = ncclSuccess;
  const ncclResult_t result = library().functions.commGetAsyncError(comm_, &error);
  return result == ncclSuccess ? error : result;
}

void Communicator::finalize() { library().functions.commFinalize(comm_); }

void Communicator::destroy() { library().functions.commDestroy(std::exchange(comm_, nullptr)); }

void Communicator::abort() {
  if (comm_) library().functions.commAbort(std::exchange(comm_, nullptr));
}

void abortConcurrently(const std::vector<Communicator*>& communicators, const std::function<void()>& enter) {
  std::vector<std::thread> threads;
  for (Communicator* const communicator : communicators) {
    if (communicator->isPending()) continue;
    try {
      threads.push_back(startThread("mosaic-abort", [communicator, &enter] {
        enter();
        communicator->abort();
      }));
    } catch (const std::system_error&) {
      communicator->abort();  // the system cannot create a thread
    }
  }
  for (std::thread& thread : threads) thread.join();
  // Aborts those whose parent was still splitting. The parents have ended, so NCCL does not write to them any more.
  for (Communicator* const communicator : communicators) communicator->abort();
}

Failure toFailure(ncclResult_t result, const Communicator& communicator) {
  const Functions& nccl = library().functions;
  const char* lastError = nccl.getLastError(communicator.get());
  const std::string detail = lastError && *lastError ? std::string("; ") + lastError : "";
  const std::string name = std::string(nccl.getErrorString(result)) + " (" + resultName(result) + ")";
  const std::string message = "NCCL: " + name + detail;
  if (result == ncclRemoteError) {
    return {MOSAIC_FAILURE_PEER_LOST,
            message +
                "; a remote rank exited or is unreachable; set NCCL_DEBUG=WARN for details, and select the "
                "network interfaces with nccl({ network }) or NCCL_SOCKET_IFNAME"};
  }
  // Either an error on this host, or the end of another one. The control plane distinguishes them, and its cause is
  // reported first.
  if (result == ncclSystemError) {
    return {MOSAIC_FAILURE_DEVICE,
            message +
                "; a system call on this host failed; set NCCL_DEBUG=WARN for details, and check /dev/shm, the "
                "limits of file descriptors and locked memory, and NCCL_SOCKET_IFNAME"};
  }
  if (result == ncclInvalidUsage) {
    return {MOSAIC_FAILURE_DEVICE,
            message +
                "; if ranks share a GPU, set a unique NCCL_HOSTID on each of these ranks: nccl({ hostId }); set "
                "NCCL_SOCKET_IFNAME or nccl({ network }) to an interface of this host; set NCCL_DEBUG=WARN for "
                "details"};
  }
  return {MOSAIC_FAILURE_DEVICE, message + "; set NCCL_DEBUG=WARN for details"};
}

void check(ncclResult_t result, const Communicator& communicator) {
  if (!isSuccessOrInProgress(result)) throw toFailure(result, communicator);
}

}  // namespace mosaic::nccl
