// How ranks of the stand-in find one another, and reach those of other hosts: by TCP, on the interface that
// NCCL_SOCKET_IFNAME names. As in NCCL, the unique id is the address of a root, where each rank leaves its own and gets
// those of all.
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

/// Where a rank listens, and its host: NCCL_HOSTID, else the host's name and boot id, as a hash.
struct Endpoint {
  sockaddr_in address;
  uint64_t host;
};

/// Fills in the id: random, and the address of a root, which serves it once. Fails where there is no such interface.
ncclResult_t createUniqueId(ncclUniqueId& id);

/// What identifies one connection: the communicator's name as a hash, the rank that connects, and whether it is for
/// collectives.
using ConnectionKey = std::tuple<uint64_t, uint32_t, uint32_t>;

/// Connections that other hosts make to a rank, for all of its communicators.
class Listener {
 public:
  /// Null if there is no interface to listen on.
  static std::shared_ptr<Listener> open();
  ~Listener();
  const Endpoint& endpoint() const { return endpoint_; }
  /// The connection of that key, once it is there; -1 if stopped before.
  int accept(const ConnectionKey& key, const std::atomic<bool>& isStopped);

 private:
  Listener(int fd, const Endpoint& endpoint) : fd_(fd), endpoint_(endpoint) {}
  void acceptPending(const std::atomic<bool>& isStopped);
  const int fd_;
  const Endpoint endpoint_;
  std::mutex mutex_;
  std::map<ConnectionKey, int> acceptedFds_;
};

/// A connection to another rank's listener; -1 if stopped before it was there.
int connectTo(const Endpoint& peer, const ConnectionKey& key, const std::atomic<bool>& isStopped);

/// The endpoints of all ranks, by rank, from the root of the id; empty if stopped before.
std::vector<Endpoint> exchangeEndpoints(const ncclUniqueId& id, uint32_t size, uint32_t rank,
                                        const Endpoint& ownEndpoint, const std::atomic<bool>& isStopped);

/// FNV-1a: the same in all processes.
uint64_t hashText(const std::string& text);

}  // namespace emulated_nccl
