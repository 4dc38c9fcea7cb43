// One rank's use of UCX: a context, a worker, and an endpoint to each other rank. Used by the communication thread
// only; any thread may destroy it once that has ended.
#pragma once

#include <string>
#include <vector>

#include "ucx/api.h"

namespace mosaic::ucx {

/// Settings of UCX. An empty text leaves the choice to UCX.
struct Settings {
  std::string network;  // UCX_NET_DEVICES
  std::string ports;    // UCX_TCP_PORT_RANGE
};

class Worker {
 public:
  /// Throws Failure if UCX rejects the settings or finds no network.
  Worker(const Settings& settings, uint32_t ranks);
  /// All requests must have completed or been cancelled.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Returns the address by which other workers make endpoints to this one.
  std::string address() const;
  /// Returns null if no network of this host reaches the address. `onError` is called in `progress` once the endpoint
  /// has failed.
  ucp_ep_h createEndpoint(const std::string& address, const ucp_err_handler_t& onError) const;
  ucp_worker_h handle() const { return worker_; }

  /// Progresses UCX. Returns whether there was anything to do.
  bool progress() const { return library().functions.workerProgress(worker_) != 0; }
  /// Arms the worker, so that `fd` becomes readable when `progress` has something to do. Returns false if it already
  /// has.
  bool arm() const;
  int fd() const { return fd_; }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int fd_ = -1;
};

/// Throws Failure for a status that is an error. Its text is `context`, followed by UCX's text for the status.
void check(ucs_status_t status, const std::string& context);

}  // namespace mosaic::ucx
