// Declarations of the functions of UCX's protocol layer (UCP) that are used here, so that the build does not need UCX.
// Names, values and layouts are those of the UCX API reference, version 1.13. Later versions only add fields, which
// `field_mask` declares absent. In structures that UCX reads, the fields after the last one used here are omitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" {

typedef struct ucp_config ucp_config_t;
typedef struct ucp_context* ucp_context_h;
typedef struct ucp_worker* ucp_worker_h;
typedef struct ucp_ep* ucp_ep_h;
typedef struct ucp_address ucp_address_t;
typedef uint64_t ucp_tag_t;
/// Null if the operation is done, a ucs_status_t if it is a small negative number, else a request in progress.
typedef void* ucs_status_ptr_t;

enum ucs_status_t : int8_t {
  UCS_OK = 0,
  UCS_INPROGRESS = 1,
  UCS_ERR_UNREACHABLE = -6,
  UCS_ERR_MESSAGE_TRUNCATED = -9,
  UCS_ERR_BUSY = -15,
  UCS_ERR_LAST = -100,
};

struct ucp_tag_recv_info_t {
  ucp_tag_t sender_tag;
  size_t length;
};

typedef void (*ucp_err_handler_cb_t)(void* arg, ucp_ep_h ep, ucs_status_t status);
typedef void (*ucp_send_nbx_callback_t)(void* request, ucs_status_t status, void* user_data);
typedef void (*ucp_tag_recv_nbx_callback_t)(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                                            void* user_data);

struct ucp_err_handler_t {
  ucp_err_handler_cb_t cb;
  void* arg;
};

struct ucp_params_t {
  uint64_t field_mask, features;
  size_t request_size;
  void (*request_init)(void* request);
  void (*request_cleanup)(void* request);
  uint64_t tag_sender_mask;
  int mt_workers_shared;
  size_t estimated_num_eps;
};

struct ucp_worker_params_t {
  uint64_t field_mask;
  int thread_mode;
};

struct ucp_ep_params_t {
  uint64_t field_mask;
  const ucp_address_t* address;
  int err_mode;
  ucp_err_handler_t err_handler;
};

struct ucp_request_param_t {
  uint32_t op_attr_mask, flags;
  void* request;
  union {
    ucp_send_nbx_callback_t send;
    ucp_tag_recv_nbx_callback_t recv;
  } cb;
  uint64_t datatype;
  void* user_data;
};

}  // extern "C"

namespace mosaic::ucx {

/// The version whose API is declared here. It is the first that supports large messages together with the detection of
/// lost peers.
constexpr unsigned kMajor = 1, kMinor = 13;

// Bits of masks such as `field_mask`, and enumerators. Their names in UCX are in check/header.cc.
constexpr uint64_t kParamFeatures = 1 << 0, kParamEstimatedEndpoints = 1 << 6;
constexpr uint64_t kFeatureTag = 1 << 0, kFeatureWakeup = 1 << 4;
constexpr uint64_t kWorkerThreadMode = 1 << 0;
constexpr int kThreadSingle = 0;
constexpr uint64_t kEndpointAddress = 1 << 0, kEndpointErrorMode = 1 << 1, kEndpointErrorHandler = 1 << 2;
constexpr int kErrorHandlingPeer = 1;
constexpr uint32_t kOpCallback = 1 << 1, kOpUserData = 1 << 2;

inline bool isError(ucs_status_ptr_t pointer) {
  return reinterpret_cast<uintptr_t>(pointer) >= static_cast<uintptr_t>(intptr_t{UCS_ERR_LAST});
}

inline ucs_status_t toStatus(ucs_status_ptr_t pointer) {
  return static_cast<ucs_status_t>(reinterpret_cast<intptr_t>(pointer));
}

/// For each function: return type, name here, symbol in the library, parameters.
#define MOSAIC_UCX(X)                                                                                                 \
  X(void, getVersion, ucp_get_version, (unsigned* major, unsigned* minor, unsigned* release))                         \
  X(const char*, statusString, ucs_status_string, (ucs_status_t status))                                              \
  X(ucs_status_t, configRead, ucp_config_read, (const char* prefix, const char* file, ucp_config_t** config))         \
  X(ucs_status_t, configModify, ucp_config_modify, (ucp_config_t * config, const char* name, const char* value))      \
  X(void, configRelease, ucp_config_release, (ucp_config_t * config))                                                 \
  X(ucs_status_t, init, ucp_init_version,                                                                             \
    (unsigned major, unsigned minor, const ucp_params_t* params, const ucp_config_t* config, ucp_context_h* context)) \
  X(void, cleanup, ucp_cleanup, (ucp_context_h context))                                                              \
  X(ucs_status_t, workerCreate, ucp_worker_create,                                                                    \
    (ucp_context_h context, const ucp_worker_params_t* params, ucp_worker_h* worker))                                 \
  X(void, workerDestroy, ucp_worker_destroy, (ucp_worker_h worker))                                                   \
  X(ucs_status_t, workerGetAddress, ucp_worker_get_address,                                                           \
    (ucp_worker_h worker, ucp_address_t** address, size_t* bytes))                                                    \
  X(void, workerReleaseAddress, ucp_worker_release_address, (ucp_worker_h worker, ucp_address_t* address))            \
  X(ucs_status_t, workerGetEfd, ucp_worker_get_efd, (ucp_worker_h worker, int* fd))                                   \
  X(ucs_status_t, workerArm, ucp_worker_arm, (ucp_worker_h worker))                                                   \
  X(unsigned, workerProgress, ucp_worker_progress, (ucp_worker_h worker))                                             \
  X(ucs_status_t, epCreate, ucp_ep_create, (ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* endpoint))  \
  X(ucs_status_ptr_t, tagSend, ucp_tag_send_nbx,                                                                      \
    (ucp_ep_h endpoint, const void* data, size_t count, ucp_tag_t tag, const ucp_request_param_t* param))             \
  X(ucs_status_ptr_t, tagReceive, ucp_tag_recv_nbx,                                                                   \
    (ucp_worker_h worker, void* data, size_t count, ucp_tag_t tag, ucp_tag_t mask, const ucp_request_param_t* param)) \
  X(void, requestCancel, ucp_request_cancel, (ucp_worker_h worker, void* request))                                    \
  X(void, requestFree, ucp_request_free, (void* request))

/// UCX's functions, found at run time.
struct Functions {
#define MOSAIC_UCX_POINTER(type, name, symbol, parameters) type(*name) parameters = nullptr;
  MOSAIC_UCX(MOSAIC_UCX_POINTER)
#undef MOSAIC_UCX_POINTER
};

// Finds UCX at run time, so that the package can be built, installed and loaded without UCX.

struct Library {
  Functions functions;
  std::string path;
  unsigned major = 0, minor = 0, release = 0;

  /// Returns a text such as "1.13.1".
  std::string version() const;
};

/// Loads the first usable library of `candidates`, once per process. Later calls may pass no candidates. Throws Failure
/// that reports what is missing or too old, and the remedy.
const Library& load(const std::vector<std::string>& candidates);

/// Returns the loaded library. Throws if none was loaded.
const Library& library();

}  // namespace mosaic::ucx
