// Compares the declarations of ucx/api.h with UCX's own header, if that is available. Compiled, never linked.
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <type_traits>

#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>

namespace vendor {
#include <ucp/api/ucp.h>
}
#include "mosaic/same_abi.h"
#include "ucx/api.h"

#define SAME_FIELD(structure, field)                                                 \
  static_assert(offsetof(vendor::structure, field) == offsetof(::structure, field)); \
  static_assert(sizeof(vendor::structure::field) == sizeof(::structure::field))
SAME_FIELD(ucp_tag_recv_info_t, sender_tag);
SAME_FIELD(ucp_tag_recv_info_t, length);
SAME_FIELD(ucp_err_handler_t, cb);
SAME_FIELD(ucp_err_handler_t, arg);
SAME_FIELD(ucp_params_t, field_mask);
SAME_FIELD(ucp_params_t, features);
SAME_FIELD(ucp_params_t, estimated_num_eps);
SAME_FIELD(ucp_worker_params_t, field_mask);
SAME_FIELD(ucp_worker_params_t, thread_mode);
SAME_FIELD(ucp_ep_params_t, field_mask);
SAME_FIELD(ucp_ep_params_t, address);
SAME_FIELD(ucp_ep_params_t, err_mode);
SAME_FIELD(ucp_ep_params_t, err_handler);
SAME_FIELD(ucp_request_param_t, op_attr_mask);
SAME_FIELD(ucp_request_param_t, flags);
SAME_FIELD(ucp_request_param_t, request);
SAME_FIELD(ucp_request_param_t, cb);
SAME_FIELD(ucp_request_param_t, datatype);
SAME_FIELD(ucp_request_param_t, user_data);

static_assert(sizeof(vendor::ucs_status_t) == sizeof(::ucs_status_t));
#define SAME_VALUE(name) static_assert(static_cast<int>(vendor::name) == static_cast<int>(::name))
SAME_VALUE(UCS_OK);
SAME_VALUE(UCS_INPROGRESS);
SAME_VALUE(UCS_ERR_UNREACHABLE);
SAME_VALUE(UCS_ERR_MESSAGE_TRUNCATED);
SAME_VALUE(UCS_ERR_BUSY);
SAME_VALUE(UCS_ERR_LAST);

static_assert(vendor::UCP_PARAM_FIELD_FEATURES == mosaic::ucx::kParamFeatures);
static_assert(vendor::UCP_PARAM_FIELD_ESTIMATED_NUM_EPS == mosaic::ucx::kParamEstimatedEndpoints);
static_assert(vendor::UCP_FEATURE_TAG == mosaic::ucx::kFeatureTag);
static_assert(vendor::UCP_FEATURE_WAKEUP == mosaic::ucx::kFeatureWakeup);
static_assert(vendor::UCP_WORKER_PARAM_FIELD_THREAD_MODE == mosaic::ucx::kWorkerThreadMode);
static_assert(vendor::UCS_THREAD_MODE_SINGLE == mosaic::ucx::kThreadSingle);
static_assert(vendor::UCP_EP_PARAM_FIELD_REMOTE_ADDRESS == mosaic::ucx::kEndpointAddress);
static_assert(vendor::UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE == mosaic::ucx::kEndpointErrorMode);
static_assert(vendor::UCP_EP_PARAM_FIELD_ERR_HANDLER == mosaic::ucx::kEndpointErrorHandler);
static_assert(vendor::UCP_ERR_HANDLING_MODE_PEER == mosaic::ucx::kErrorHandlingPeer);
static_assert(vendor::UCP_OP_ATTR_FIELD_CALLBACK == mosaic::ucx::kOpCallback);
static_assert(vendor::UCP_OP_ATTR_FIELD_USER_DATA == mosaic::ucx::kOpUserData);

// The types of callbacks.
static_assert(check::hasSameAbi<std::remove_pointer_t<::ucp_send_nbx_callback_t>,
                                std::remove_pointer_t<vendor::ucp_send_nbx_callback_t>>);
static_assert(check::hasSameAbi<std::remove_pointer_t<::ucp_tag_recv_nbx_callback_t>,
                                std::remove_pointer_t<vendor::ucp_tag_recv_nbx_callback_t>>);
static_assert(check::hasSameAbi<std::remove_pointer_t<::ucp_err_handler_cb_t>,
                                std::remove_pointer_t<vendor::ucp_err_handler_cb_t>>);

using mosaic::ucx::Functions;
#define SAME_CALL(type, name, symbol, parameters) \
  static_assert(check::hasSameAbi<std::remove_pointer_t<decltype(Functions::name)>, decltype(vendor::symbol)>, #symbol);
MOSAIC_UCX(SAME_CALL)
