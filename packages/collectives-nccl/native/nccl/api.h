// Declarations of the functions of NCCL that are used here, so that the build does not need NCCL. A stream is a handle
// of the device's own type. Names, values and layouts are those of NVIDIA's "NCCL User Guide", version 2.18; NCCL keeps
// them stable.
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

/// The layout of version 2.18. Newer versions determine from `size` and `version` which fields are present, and fill in
/// the others.
struct ncclConfig_t {
  size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char* netName;
  int splitShare;
};

}  // extern "C"

namespace mosaic::nccl {

/// Returns a version in the format of ncclGetVersion, for example 21805 for 2.18.5.
constexpr int encodeVersion(int major, int minor, int patch) { return major * 10000 + minor * 100 + patch; }

/// The first version with ncclCommSplit and with all fields of ncclConfig_t above.
constexpr int kMinVersion = encodeVersion(2, 18, 0);
constexpr unsigned kConfigMagic = 0xcafebeef;
constexpr int kUndefined = INT_MIN;
/// The most CTAs per communicator (MAXCHANNELS); versions with a lower limit clamp this to it.
constexpr int kMaxCtas = 64;
/// ncclUint8. Payload is transferred as bytes, because no NCCL reductions are used.
constexpr int kByteType = 1;

/// For each function: return type, name here, symbol in the library, parameters.
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

// Finds NCCL at run time, so that the package can be built, installed and loaded without NCCL.

struct Library {
  Functions functions;
  std::string path;
  int version = 0;
};

/// Loads the first usable library of `candidates`, once per process. Later calls may pass no candidates. Throws Failure
/// that reports what is missing or too old, and the remedy.
const Library& load(const std::vector<std::string>& candidates);

/// Returns the loaded library. Throws if none was loaded.
const Library& library();

/// Returns a text such as "2.18.5" for 21805.
std::string versionText(int version);

}  // namespace mosaic::nccl
