// Rendezvous of the emulation's ranks, and connections to other hosts, by TCP on the interface that NCCL_SOCKET_IFNAME
// names. As in NCCL, the unique id contains the address of a root, to which each rank sends its own address, and from
// which it receives those of all.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "nccl/api.h"

namespace emulated_nccl {

/// The address at which a rank listens, and a hash of its host: of NCCL_HOSTID, else of the host's name and boot id.
struct Endpoint {
  sockaddr_in address;
  uint64_t host;
};

/// Fills in the id, which is random and contains the address of a root that serves it once. Fails if there is no usable
/// interface.
ncclResult_t createUniqueId(ncclUniqueId& id);

/// Identifies a connection: hash of the communicator's name, the rank that connects, and whether it is for collectives.
using ConnectionKey = std::tuple<uint64_t, uint32_t, uint32_t>;

/// Accepts the connections from other hosts to a rank, for all of its communicators.
class Listener {
 public:
  /// Returns null if there is no interface to listen on.
  static std::shared_ptr<Listener> open();
  ~Listener();
  const Endpoint& endpoint() const { return endpoint_; }
  /// Waits for the connection with this key. Returns -1 if stopped before.
  int accept(const ConnectionKey& key, const std::atomic<bool>& isStopped);

 private:
  Listener(int fd, const Endpoint& endpoint) : fd_(fd), endpoint_(endpoint) {}
  void acceptPending(const std::atomic<bool>& isStopped);
  const int fd_;
  const Endpoint endpoint_;
  std::mutex mutex_;
  std::map<ConnectionKey, int> acceptedFds_;
};

/// Connects to another rank's listener. Returns -1 if stopped before.
int connectTo(const Endpoint& peer, const ConnectionKey& key, const std::atomic<bool>& isStopped);

/// Returns the endpoints of all ranks, by rank, from the root of the id. Empty if stopped before.
std::vector<Endpoint> exchangeEndpoints(const ncclUniqueId& id, uint32_t size, uint32_t rank,
                                        const Endpoint& ownEndpoint, const std::atomic<bool>& isStopped);

/// Returns the FNV-1a hash, which is equal in all processes.
uint64_t hashText(const std::string& text);

}  // namespace emulated_nccl
