// What we use of NCCL, declared here so that nothing of it is needed to build. A stream is a handle of the device's.
// Names, values and layouts are those of NVIDIA's "NCCL User Guide", version 2.18; NCCL keeps them for good.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" {

typedef struct ncclComm* ncclComm_t;

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

struct ncclUniqueId {
  char internal[128];
};

/// The layout of 2.18. A newer NCCL reads from `size` and `version` which fields there are, and fills in the others.
struct ncclConfig_t {
  size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char* netName;
  int splitShare;
};

}  // extern "C"

namespace mosaic::nccl {

/// As ncclGetVersion writes it: 21805 for 2.18.5.
constexpr int encodeVersion(int major, int minor, int patch) { return major * 10000 + minor * 100 + patch; }

/// The first with ncclCommSplit, and with all of ncclConfig_t above.
constexpr int kMinVersion = encodeVersion(2, 18, 0);
constexpr unsigned kConfigMagic = 0xcafebeef;
constexpr int kUndefined = INT_MIN;
/// Thread blocks of a communicator at most (MAXCHANNELS); a version that has fewer takes this for its own most.
constexpr int kMaxCtas = 64;
/// Payload travels as bytes: nothing here computes. (ncclUint8)
constexpr int kByteType = 1;

/// Returned type, name here, symbol in the library, parameters.
#define MOSAIC_NCCL(X)                                                                                                 \
  X(ncclResult_t, getVersion, ncclGetVersion, (int* version))                                                          \
  X(ncclResult_t, getUniqueId, ncclGetUniqueId, (ncclUniqueId * id))                                                   \
  X(const char*, getErrorString, ncclGetErrorString, (ncclResult_t result))                                            \
  X(const char*, getLastError, ncclGetLastError, (ncclComm_t comm))                                                    \
  X(ncclResult_t, commInitRankConfig, ncclCommInitRankConfig,                                                          \
    (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config))                                   \
  X(ncclResult_t, commSplit, ncclCommSplit,                                                                            \
    (ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config))                                  \
  X(ncclResult_t, commFinalize, ncclCommFinalize, (ncclComm_t comm))                                                   \
  X(ncclResult_t, commDestroy, ncclCommDestroy, (ncclComm_t comm))                                                     \
  X(ncclResult_t, commAbort, ncclCommAbort, (ncclComm_t comm))                                                         \
  X(ncclResult_t, commGetAsyncError, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))                   \
  X(ncclResult_t, groupStart, ncclGroupStart, ())                                                                      \
  X(ncclResult_t, groupEnd, ncclGroupEnd, ())                                                                          \
  X(ncclResult_t, send, ncclSend, (const void* data, size_t count, int type, int peer, ncclComm_t comm, void* stream)) \
  X(ncclResult_t, recv, ncclRecv, (void* data, size_t count, int type, int peer, ncclComm_t comm, void* stream))       \
  X(ncclResult_t, allGather, ncclAllGather,                                                                            \
    (const void* in, void* out, size_t count, int type, ncclComm_t comm, void* stream))                                \
  X(ncclResult_t, broadcast, ncclBroadcast,                                                                            \
    (const void* in, void* out, size_t count, int type, int root, ncclComm_t comm, void* stream))

/// NCCL's functions, found at run time.
struct Functions {
#define MOSAIC_NCCL_POINTER(type, name, symbol, parameters) type(*name) parameters = nullptr;
  MOSAIC_NCCL(MOSAIC_NCCL_POINTER)
#undef MOSAIC_NCCL_POINTER
};

// Finds NCCL at run time, so that everything builds, installs and loads where there is none.

struct Library {
  Functions functions;
  std::string path;
  int version = 0;
};

/// Loads the first of `candidates` that can be used, once for the process; later calls need name none.
/// Throws Failure that reports what is missing, or too old, and what to do about it.
const Library& load(const std::vector<std::string>& candidates);

/// What was loaded. Throws before that.
const Library& library();

/// "2.18.5" for 21805.
std::string versionText(int version);

}  // namespace mosaic::nccl
