// One rank's UCX: a context, a worker, and an endpoint to each other rank. All but the constructor's caller is the
// communication thread.
#pragma once

#include <string>
#include <vector>

#include "ucx/api.h"

namespace mosaic::ucx {

/// Empty: UCX chooses.
struct Settings {
  std::string network;  // UCX_NET_DEVICES
  std::string ports;    // UCX_TCP_PORT_RANGE
};

class Worker {
 public:
  /// Throws Failure where UCX refuses the settings, or finds no network.
  Worker(const Settings& settings, uint32_t ranks);
  /// Only in order: what UCX still has under way must have been cancelled, or be of no interest.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// By which other workers make endpoints to this one.
  std::string address() const;
  /// Null where no network of this host reaches that address. `onError` is called, in `progress`, once the endpoint
  /// has failed.
  ucp_ep_h createEndpoint(const std::string& address, const ucp_err_handler_t& onError) const;
  ucp_worker_h handle() const { return worker_; }

  /// Whether anything moved.
  bool progress() const { return library().functions.workerProgress(worker_) != 0; }
  /// From now on `fd` becomes readable when `progress` has something to do. False: it has already.
  bool arm() const;
  int fd() const { return fd_; }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int fd_ = -1;
};

/// Throws Failure for a status that is an error: `context`: the status in UCX's words.
void check(ucs_status_t status, const std::string& context);

}  // namespace mosaic::ucx
