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

constexpr int kPollTimeoutMs = 10;
constexpr size_t kRandomBytes = 16;

/// The data that a rank sends to the root.
struct Registration {
  uint32_t size, rank;
  Endpoint endpoint;
};

/// The first bytes of a connection to a listener.
struct Hello {
  uint64_t communicator;
  uint32_t rank, collective;
};

std::string getEnvironmentVariable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// Whether NCCL_SOCKET_IFNAME selects an interface. It has prefixes of names, or complete names after "=". After "^",
/// the names are excluded.
bool isUsableInterface(const std::string& name, std::string patterns) {
  if (patterns.empty()) return name != "lo" && name.rfind("docker", 0) != 0;
  const bool isExclusion = patterns[0] == '^';
  if (isExclusion) patterns.erase(0, 1);
  const bool isExactMatch = !patterns.empty() && patterns[0] == '=';
  if (isExactMatch) patterns.erase(0, 1);
  std::istringstream stream(patterns);
  bool isMatch = false;
  for (std::string pattern; std::getline(stream, pattern, ',');) {
    isMatch = isMatch || (isExactMatch ? name == pattern : name.rfind(pattern, 0) == 0);
  }
  return isMatch != isExclusion;
}

/// Returns the address of the first usable interface, or that of the loopback if there is no other and none was named.
std::optional<sockaddr_in> selectAddress() {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return std::nullopt;
  const std::string names = getEnvironmentVariable("NCCL_SOCKET_IFNAME");
  std::optional<sockaddr_in> selectedAddress, loopback;
  for (const ifaddrs* interface = interfaces; interface; interface = interface->ifa_next) {
    if (!interface->ifa_addr || interface->ifa_addr->sa_family != AF_INET || !(interface->ifa_flags & IFF_UP)) continue;
    const auto& address = *reinterpret_cast<const sockaddr_in*>(interface->ifa_addr);
    if (!selectedAddress && isUsableInterface(interface->ifa_name, names)) selectedAddress = address;
    if (!loopback && (interface->ifa_flags & IFF_LOOPBACK)) loopback = address;
  }
  freeifaddrs(interfaces);
  return selectedAddress || !names.empty() ? selectedAddress : loopback;
}

/// Returns a socket that listens on the selected interface, or -1 if there is none.
int listenOnInterface(sockaddr_in& address) {
  const auto selectedAddress = selectAddress();
  if (!selectedAddress) return -1;
  address = *selectedAddress;
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

void pollSocket(int fd, short events) {
  pollfd polled{fd, events, 0};
  poll(&polled, 1, kPollTimeoutMs);
}

/// Transfers all bytes to or from a non-blocking socket. Returns false if the connection ends or it is stopped before.
template <typename TransferFunction>
bool transferAll(int fd, size_t bytes, short events, const std::atomic<bool>& isStopped,
                 TransferFunction transferSome) {
  for (size_t offset = 0; offset < bytes && !isStopped;) {
    const ssize_t n = transferSome(offset);
    if (n > 0) offset += static_cast<size_t>(n);
    else if (n == 0 || errno != EAGAIN) return false;
    else pollSocket(fd, events);
  }
  return !isStopped;
}

bool sendAll(int fd, const void* data, size_t bytes, const std::atomic<bool>& isStopped) {
  const auto* sourceBytes = static_cast<const uint8_t*>(data);
  return transferAll(fd, bytes, POLLOUT, isStopped,
                     [&](size_t offset) { return send(fd, sourceBytes + offset, bytes - offset, MSG_NOSIGNAL); });
}

bool receiveAll(int fd, void* data, size_t bytes, const std::atomic<bool>& isStopped) {
  auto* targetBytes = static_cast<uint8_t*>(data);
  return transferAll(fd, bytes, POLLIN, isStopped,
                     [&](size_t offset) { return recv(fd, targetBytes + offset, bytes - offset, 0); });
}

/// Accepts the next connection. Returns -1 if there is none yet.
int acceptConnection(int fd) {
  const int connection = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  const int noDelay = 1;
  if (connection >= 0) setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &noDelay, sizeof noDelay);
  return connection;
}

/// Connects, and retries until the peer listens, as NCCL does for a limited time.
int connectToAddress(const sockaddr_in& address, const std::atomic<bool>& isStopped) {
  while (!isStopped) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int error = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
    while (error == EINPROGRESS && !isStopped) {
      pollfd polled{fd, POLLOUT, 0};
      if (poll(&polled, 1, kPollTimeoutMs) == 0) continue;
      socklen_t length = sizeof error;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    }
    const int noDelay = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &noDelay, sizeof noDelay);
    if (error == 0) return fd;
    close(fd);
    const timespec interval{0, 10'000'000};
    nanosleep(&interval, nullptr);
  }
  return -1;
}

/// Serves the ranks of one communicator, then returns. If some ranks never connect, it runs until the process exits.
void serveRoot(int fd) {
  const std::atomic<bool> isStopped{false};
  std::vector<int> connections;
  std::vector<Endpoint> endpoints;
  uint32_t missingRankCount = 1;
  while (missingRankCount > 0) {
    pollSocket(fd, POLLIN);
    const int connection = acceptConnection(fd);
    if (connection < 0) continue;
    Registration registration;
    if (!receiveAll(connection, &registration, sizeof registration, isStopped) ||
        registration.rank >= registration.size) {
      close(connection);
      continue;
    }
    if (endpoints.empty()) missingRankCount = registration.size;
    endpoints.resize(registration.size);
    endpoints[registration.rank] = registration.endpoint;
    connections.push_back(connection);
    missingRankCount--;
  }
  for (const int connection : connections) {
    sendAll(connection, endpoints.data(), endpoints.size() * sizeof(Endpoint), isStopped);
    close(connection);
  }
  close(fd);
}

uint64_t computeHostHash() {
  const std::string configuredHostId = getEnvironmentVariable("NCCL_HOSTID");
  if (!configuredHostId.empty()) return hashText(configuredHostId);
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::string bootId;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> bootId;
  return hashText(name + bootId);
}

}  // namespace

uint64_t hashText(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char character : text) hash = (hash ^ static_cast<uint8_t>(character)) * 0x100000001b3;
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
  Endpoint endpoint{{}, computeHostHash()};
  const int fd = listenOnInterface(endpoint.address);
  return fd < 0 ? nullptr : std::shared_ptr<Listener>(new Listener(fd, endpoint));
}

Listener::~Listener() {
  for (const auto& [key, fd] : acceptedFds_) close(fd);
  close(fd_);
}

int Listener::accept(const ConnectionKey& key, const std::atomic<bool>& isStopped) {
  while (!isStopped) {
    {
      const std::lock_guard lock(mutex_);
      acceptPending(isStopped);
      if (const auto entry = acceptedFds_.find(key); entry != acceptedFds_.end()) {
        const int fd = entry->second;
        acceptedFds_.erase(entry);
        return fd;
      }
    }
    pollSocket(fd_, POLLIN);
  }
  return -1;
}

void Listener::acceptPending(const std::atomic<bool>& isStopped) {
  const int fd = acceptConnection(fd_);
  if (fd < 0) return;
  Hello hello;
  if (receiveAll(fd, &hello, sizeof hello, isStopped)) {
    acceptedFds_[{hello.communicator, hello.rank, hello.collective}] = fd;
  } else {
    close(fd);
  }
}

int connectTo(const Endpoint& peer, const ConnectionKey& key, const std::atomic<bool>& isStopped) {
  const int fd = connectToAddress(peer.address, isStopped);
  if (fd < 0) return -1;
  const Hello hello{std::get<0>(key), std::get<1>(key), std::get<2>(key)};
  if (sendAll(fd, &hello, sizeof hello, isStopped)) return fd;
  close(fd);
  return -1;
}

std::vector<Endpoint> exchangeEndpoints(const ncclUniqueId& id, uint32_t size, uint32_t rank,
                                        const Endpoint& ownEndpoint, const std::atomic<bool>& isStopped) {
  sockaddr_in root;
  std::memcpy(&root, id.internal + kRandomBytes, sizeof root);
  const int fd = connectToAddress(root, isStopped);
  if (fd < 0) return {};
  const Registration registration{size, rank, ownEndpoint};
  std::vector<Endpoint> endpoints(size);
  const bool isComplete = sendAll(fd, &registration, sizeof registration, isStopped) &&
                          receiveAll(fd, endpoints.data(), size * sizeof(Endpoint), isStopped);
  close(fd);
  if (!isComplete) endpoints.clear();
  return endpoints;
}

}  // namespace emulated_nccl
