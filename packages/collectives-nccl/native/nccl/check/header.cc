// Compares the declarations of nccl/api.h with NVIDIA's own header, if that is available. Compiled, never linked.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace vendor {
#include <nccl.h>
}
#include "mosaic/same_abi.h"
#include "nccl/api.h"

#define SAME_OFFSET(field)                                                               \
  static_assert(offsetof(vendor::ncclConfig_t, field) == offsetof(ncclConfig_t, field)); \
  static_assert(sizeof(vendor::ncclConfig_t::field) == sizeof(ncclConfig_t::field))
SAME_OFFSET(size);
SAME_OFFSET(magic);
SAME_OFFSET(version);
SAME_OFFSET(blocking);
SAME_OFFSET(cgaClusterSize);
SAME_OFFSET(minCTAs);
SAME_OFFSET(maxCTAs);
SAME_OFFSET(netName);
SAME_OFFSET(splitShare);

#define SAME_VALUE(name) static_assert(static_cast<int>(vendor::name) == static_cast<int>(::name))
SAME_VALUE(ncclSuccess);
SAME_VALUE(ncclUnhandledCudaError);
SAME_VALUE(ncclSystemError);
SAME_VALUE(ncclInternalError);
SAME_VALUE(ncclInvalidArgument);
SAME_VALUE(ncclInvalidUsage);
SAME_VALUE(ncclRemoteError);
SAME_VALUE(ncclInProgress);
static_assert(vendor::ncclUint8 == mosaic::nccl::kByteType);
static_assert(NCCL_CONFIG_UNDEF_INT == mosaic::nccl::kUndefined);
static_assert(NCCL_VERSION(2, 18, 0) == mosaic::nccl::kMinVersion);

constexpr vendor::ncclConfig_t kInitialConfig = NCCL_CONFIG_INITIALIZER;
static_assert(kInitialConfig.magic == mosaic::nccl::kConfigMagic);

using mosaic::nccl::Functions;
#define SAME_CALL(type, name, symbol, parameters) \
  static_assert(check::hasSameAbi<std::remove_pointer_t<decltype(Functions::name)>, decltype(vendor::symbol)>, #symbol);
MOSAIC_NCCL(SAME_CALL)
