#include "ucx/worker.h"

#include <stdlib.h>

#include <mutex>

#include "mosaic/failure.h"

namespace mosaic::ucx {

namespace {

// Ranks of one process make their contexts concurrently, but UCX's initialization is not thread-safe.
std::mutex contextMutex;

/// Settings for large messages and for failures, unless the user has set them. The names are without UCX_. Reasons:
///
/// - Protocols of version 2 never complete receives from a lost peer, and crash in the clean-up.
/// - TCP must send copies rather than the caller's memory (no elements of `sendmsg`). If a peer dies while memory is
///   sent, UCX completes the send twice (`uct_tcp_ep_sendv`, in all versions up to 1.23), and builds with assertions
///   abort.
/// - TCP copies and sends one segment at a time. With UCX's default of 8 KiB the calls cost a third of the bandwidth.
///   From 64 KiB on, a segment leaves the cache between its copy and its `send`.
/// - Copies between processes (CMA, KNEM, XPMEM) may write into a tensor after this rank has failed. Without them, data
///   arrives only in this rank's own `progress`.
constexpr const char* kSettings[][2] = {{"PROTO_ENABLE", "n"}, {"TLS", "^cma,knem,xpmem"}};
/// Settings of the TCP transport. The names are without UCX_TCP_.
constexpr const char* kTcpSettings[][2] = {
    {"MAX_IOV", "0"}, {"TX_SEG_SIZE", "32K"}, {"RX_SEG_SIZE", "64K"}, {"USER_TIMEOUT", "5s"}};

class Config {
 public:
  Config() {
    check(library().functions.configRead(nullptr, nullptr, &config_), "ucx: cannot read the UCX configuration");
  }
  ~Config() { library().functions.configRelease(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  const ucp_config_t* get() const { return config_; }
  void setOption(const std::string& name, const std::string& value) {
    check(library().functions.configModify(config_, name.c_str(), value.c_str()), "ucx: UCX_" + name + "=" + value);
  }
  /// Sets both names, because version 1.13 expects names without "TCP_" and others may differ. Unknown names are
  /// ignored.
  void setTcpOption(const std::string& name, const std::string& value) {
    library().functions.configModify(config_, ("TCP_" + name).c_str(), value.c_str());
    library().functions.configModify(config_, name.c_str(), value.c_str());
  }

 private:
  ucp_config_t* config_ = nullptr;
};

}  // namespace

void check(ucs_status_t status, const std::string& context) {
  if (status >= UCS_OK) return;
  throw Failure(MOSAIC_FAILURE_DEVICE, context + ": " + library().functions.statusString(status));
}

Worker::Worker(const Settings& settings, uint32_t ranks) {
  const std::lock_guard lock(contextMutex);
  const Functions& ucp = library().functions;
  Config config;
  const auto isNotSet = [](const std::string& name) { return getenv(("UCX_" + name).c_str()) == nullptr; };
  for (const auto& [name, value] : kSettings) {
    if (isNotSet(name)) config.setOption(name, value);
  }
  for (const auto& [name, value] : kTcpSettings) {
    if (isNotSet(std::string("TCP_") + name)) config.setTcpOption(name, value);
  }
  if (!settings.network.empty()) config.setOption("NET_DEVICES", settings.network);
  if (!settings.ports.empty()) config.setTcpOption("PORT_RANGE", settings.ports);
  ucp_params_t params{};
  params.field_mask = kParamFeatures | kParamEstimatedEndpoints;
  params.features = kFeatureTag | kFeatureWakeup;
  params.estimated_num_eps = ranks;
  const std::string network = settings.network.empty() ? "" : " on network \"" + settings.network + "\"";
  const std::string remedy = "; `ucx_info -d` lists the networks that UCX finds on this host";
  const ucs_status_t initStatus = ucp.init(kMajor, kMinor, &params, config.get(), &context_);
  if (initStatus < UCS_OK) {
    throw Failure(MOSAIC_FAILURE_DEVICE,
                  "ucx: cannot initialize UCX" + network + ": " + ucp.statusString(initStatus) + remedy);
  }
  ucp_worker_params_t parameters{};
  parameters.field_mask = kWorkerThreadMode;
  parameters.thread_mode = kThreadSingle;
  try {
    const ucs_status_t status = ucp.workerCreate(context_, &parameters, &worker_);
    if (status < UCS_OK) {
      throw Failure(MOSAIC_FAILURE_DEVICE,
                    "ucx: cannot create a UCX worker" + network + ": " + ucp.statusString(status) + remedy);
    }
    check(ucp.workerGetEfd(worker_, &fd_), "ucp_worker_get_efd");
  } catch (...) {
    if (worker_) ucp.workerDestroy(worker_);
    ucp.cleanup(context_);
    throw;
  }
}

Worker::~Worker() {
  const std::lock_guard lock(contextMutex);
  library().functions.workerDestroy(worker_);
  library().functions.cleanup(context_);
}

std::string Worker::address() const {
  const Functions& ucp = library().functions;
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  check(ucp.workerGetAddress(worker_, &address, &bytes), "ucp_worker_get_address");
  std::string addressBytes(reinterpret_cast<const char*>(address), bytes);
  ucp.workerReleaseAddress(worker_, address);
  return addressBytes;
}

ucp_ep_h Worker::createEndpoint(const std::string& address, const ucp_err_handler_t& onError) const {
  ucp_ep_params_t params{};
  params.field_mask = kEndpointAddress | kEndpointErrorMode | kEndpointErrorHandler;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = kErrorHandlingPeer;
  params.err_handler = onError;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = library().functions.epCreate(worker_, &params, &endpoint);
  if (status == UCS_ERR_UNREACHABLE) return nullptr;
  check(status, "ucp_ep_create");
  return endpoint;
}

bool Worker::arm() const { return library().functions.workerArm(worker_) == UCS_OK; }

}  // namespace mosaic::ucx
