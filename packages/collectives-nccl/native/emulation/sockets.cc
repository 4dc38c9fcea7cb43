#include "emulation/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

namespace emulated_nccl {

namespace {

constexpr int kPollMs = 10;
constexpr size_t kRandomBytes = 16;

/// What a rank leaves at the root.
struct Registration {
  uint32_t size, rank;
  Endpoint endpoint;
};

/// What a connection to a listener begins with.
struct Hello {
  uint64_t communicator;
  uint32_t rank, collective;
};

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// NCCL_SOCKET_IFNAME: prefixes of names, or whole names after "=", or after "^" those that are not to be used.
bool isChosen(const std::string& name, std::string names) {
  if (names.empty()) return name != "lo" && name.rfind("docker", 0) != 0;
  const bool excludes = names[0] == '^';
  if (excludes) names.erase(0, 1);
  const bool isExact = !names.empty() && names[0] == '=';
  if (isExact) names.erase(0, 1);
  std::istringstream list(names);
  bool matches = false;
  for (std::string each; std::getline(list, each, ',');) {
    matches = matches || (isExact ? name == each : name.rfind(each, 0) == 0);
  }
  return matches != excludes;
}

/// The address of the first interface that may be used; the loopback's where there is no other and none was named.
std::optional<sockaddr_in> ownAddress() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  const std::string names = environment("NCCL_SOCKET_IFNAME");
  std::optional<sockaddr_in> selected, loopback;
  for (const ifaddrs* each = all; each; each = each->ifa_next) {
    if (!each->ifa_addr || each->ifa_addr->sa_family != AF_INET || !(each->ifa_flags & IFF_UP)) continue;
    const auto& address = *reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    if (!selected && isChosen(each->ifa_name, names)) selected = address;
    if (!loopback && (each->ifa_flags & IFF_LOOPBACK)) loopback = address;
  }
  freeifaddrs(all);
  return selected || !names.empty() ? selected : loopback;
}

/// A socket that listens on the chosen interface; -1 if there is none.
int listenOnInterface(sockaddr_in& address) {
  const auto selected = ownAddress();
  if (!selected) return -1;
  address = *selected;
  address.sin_port = 0;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t length = sizeof address;
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(fd, 4096) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

void waitFor(int fd, short events) {
  pollfd polled{fd, events, 0};
  poll(&polled, 1, kPollMs);
}

/// All bytes, to or from a socket that does not block; false if the connection ends, or once stopped.
template <typename TransferFunction>
bool transferAll(int fd, size_t bytes, short events, const std::atomic<bool>& stopped, TransferFunction transfer) {
  for (size_t done = 0; done < bytes && !stopped;) {
    const ssize_t n = transfer(done);
    if (n > 0) done += static_cast<size_t>(n);
    else if (n == 0 || errno != EAGAIN) return false;
    else waitFor(fd, events);
  }
  return !stopped;
}

bool sendAll(int fd, const void* data, size_t bytes, const std::atomic<bool>& stopped) {
  const auto* at = static_cast<const uint8_t*>(data);
  return transferAll(fd, bytes, POLLOUT, stopped,
                 [&](size_t done) { return send(fd, at + done, bytes - done, MSG_NOSIGNAL); });
}

bool receiveAll(int fd, void* data, size_t bytes, const std::atomic<bool>& stopped) {
  auto* at = static_cast<uint8_t*>(data);
  return transferAll(fd, bytes, POLLIN, stopped, [&](size_t done) { return recv(fd, at + done, bytes - done, 0); });
}

/// The next connection; -1 if there is none yet.
int acceptOne(int fd) {
  const int accepted = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  const int enabled = 1;
  if (accepted >= 0) setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &enabled, sizeof enabled);
  return accepted;
}

/// Tries until the peer listens, as NCCL does for a while.
int connectToAddress(const sockaddr_in& address, const std::atomic<bool>& stopped) {
  while (!stopped) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int error = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
    while (error == EINPROGRESS && !stopped) {
      pollfd polled{fd, POLLOUT, 0};
      if (poll(&polled, 1, kPollMs) == 0) continue;
      socklen_t length = sizeof error;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    }
    const int enabled = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &enabled, sizeof enabled);
    if (error == 0) return fd;
    close(fd);
    const timespec interval{0, 10'000'000};
    nanosleep(&interval, nullptr);
  }
  return -1;
}

/// Serves the ranks of one communicator, then ends. Where they never all come, it stays until the process ends.
void serveRoot(int fd) {
  const std::atomic<bool> neverStopped{false};
  std::vector<int> connections;
  std::vector<Endpoint> endpoints;
  uint32_t missing = 1;
  while (missing > 0) {
    waitFor(fd, POLLIN);
    const int rank = acceptOne(fd);
    if (rank < 0) continue;
    Registration registration;
    if (!receiveAll(rank, &registration, sizeof registration, neverStopped) || registration.rank >= registration.size) {
      close(rank);
      continue;
    }
    if (endpoints.empty()) missing = registration.size;
    endpoints.resize(registration.size);
    endpoints[registration.rank] = registration.endpoint;
    connections.push_back(rank);
    missing--;
  }
  for (const int each : connections) {
    sendAll(each, endpoints.data(), endpoints.size() * sizeof(Endpoint), neverStopped);
    close(each);
  }
  close(fd);
}

uint64_t hostHash() {
  const std::string configuredHostId = environment("NCCL_HOSTID");
  if (!configuredHostId.empty()) return hashOf(configuredHostId);
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::string bootId;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> bootId;
  return hashOf(name + bootId);
}

}  // namespace

uint64_t hashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char each : text) hash = (hash ^ static_cast<uint8_t>(each)) * 0x100000001b3;
  return hash;
}

ncclResult_t createUniqueId(ncclUniqueId& id) {
  id = {};
  if (getrandom(id.internal, kRandomBytes, 0) != static_cast<ssize_t>(kRandomBytes)) return ncclSystemError;
  sockaddr_in address;
  const int fd = listenOnInterface(address);
  if (fd < 0) return ncclInvalidUsage;
  std::memcpy(id.internal + kRandomBytes, &address, sizeof address);
  std::thread(serveRoot, fd).detach();
  return ncclSuccess;
}

std::shared_ptr<Listener> Listener::open() {
  Endpoint endpoint{{}, hostHash()};
  const int fd = listenOnInterface(endpoint.address);
  return fd < 0 ? nullptr : std::shared_ptr<Listener>(new Listener(fd, endpoint));
}

Listener::~Listener() {
  for (const auto& [key, fd] : accepted_) close(fd);
  close(fd_);
}

int Listener::accept(const ConnectionKey& key, const std::atomic<bool>& stopped) {
  while (!stopped) {
    {
      const std::lock_guard lock(mutex_);
      acceptNext(stopped);
      if (const auto found = accepted_.find(key); found != accepted_.end()) {
        const int fd = found->second;
        accepted_.erase(found);
        return fd;
      }
    }
    waitFor(fd_, POLLIN);
  }
  return -1;
}

void Listener::acceptNext(const std::atomic<bool>& stopped) {
  const int fd = acceptOne(fd_);
  if (fd < 0) return;
  Hello hello;
  if (receiveAll(fd, &hello, sizeof hello, stopped)) {
    accepted_[{hello.communicator, hello.rank, hello.collective}] = fd;
  } else {
    close(fd);
  }
}

int connectTo(const Endpoint& peer, const ConnectionKey& key, const std::atomic<bool>& stopped) {
  const int fd = connectToAddress(peer.address, stopped);
  if (fd < 0) return -1;
  const Hello hello{std::get<0>(key), std::get<1>(key), std::get<2>(key)};
  if (sendAll(fd, &hello, sizeof hello, stopped)) return fd;
  close(fd);
  return -1;
}

std::vector<Endpoint> exchangeEndpoints(const ncclUniqueId& id, uint32_t size, uint32_t rank, const Endpoint& own,
                                        const std::atomic<bool>& stopped) {
  sockaddr_in root;
  std::memcpy(&root, id.internal + kRandomBytes, sizeof root);
  const int fd = connectToAddress(root, stopped);
  if (fd < 0) return {};
  const Registration registration{size, rank, own};
  std::vector<Endpoint> endpoints(size);
  const bool isComplete = sendAll(fd, &registration, sizeof registration, stopped) &&
                          receiveAll(fd, endpoints.data(), size * sizeof(Endpoint), stopped);
  close(fd);
  if (!isComplete) endpoints.clear();
  return endpoints;
}

}  // namespace emulated_nccl
