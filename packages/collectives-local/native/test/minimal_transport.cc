// The smallest host-ordered transport: a socket between every two ranks of this process. docs/transports.md explains
// it; the suites of @mosaic/conformance run over it. A header precedes each payload. Bytes that a socket does not
// accept wait for the next `progress`. Reductions are left to the engine.
#include <mosaic/failure.h>
#include <mosaic/transport.h>
#include <node_api.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace {

struct Minimal {
  MosaicTransport table{MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_HOST, "minimal", &host, nullptr};
  MosaicHostTransport host{};
  MosaicMatches matches = nullptr;
  int wakeFd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::vector<int> sockets;  // by rank; −1: this rank
  std::vector<std::deque<MosaicMessage*>> sends, receives;

  static Minimal& of(void* self) { return *static_cast<Minimal*>(self); }

  /// The lower rank of each pair makes the socket, and publishes its other end.
  int connect(MosaicBootstrap& bootstrap, MosaicFailure* failure) {
    matches = bootstrap.matches;
    sockets.assign(bootstrap.size, -1);
    sends.resize(bootstrap.size);
    receives.resize(bootstrap.size);
    const auto key = [](uint32_t a, uint32_t b) { return "socket/" + std::to_string(a) + "/" + std::to_string(b); };
    for (uint32_t peer = bootstrap.rank + 1; peer < bootstrap.size; peer++) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
        const std::string message = std::string("minimal: cannot create a socket pair: ") + std::strerror(errno);
        return *failure = mosaic::failureRecord(MOSAIC_FAILURE_DEVICE, message), 1;
      }
      sockets[peer] = pair[0];
      if (bootstrap.put(&bootstrap, key(bootstrap.rank, peer).c_str(), &pair[1], sizeof(int), failure) != 0) return 1;
    }
    uint64_t bytes = 0;
    for (uint32_t peer = 0; peer < bootstrap.rank; peer++) {
      const std::string from = key(peer, bootstrap.rank);
      if (bootstrap.get(&bootstrap, from.c_str(), &sockets[peer], sizeof(int), &bytes, failure) != 0) return 1;
    }
    return 0;
  }

  /// Transfers bytes of the header, then the payload, of the first message of a queue. Returns whether any moved.
  template <typename Transfer>
  bool step(std::deque<MosaicMessage*>& queue, bool isSend, Transfer transfer) {
    if (queue.empty() || queue.front()->state != MOSAIC_MESSAGE_PENDING) return false;
    MosaicMessage& m = *queue.front();
    uint64_t& headerBytesMoved = m.transport[0];
    bool hasMoved = false;
    const auto move = [&](uint8_t* data, uint64_t& done, uint64_t bytes) {
      while (done < bytes) {
        const ssize_t count = transfer(data + done, bytes - done);
        if (count == 0 || (count < 0 && (errno == EPIPE || errno == ECONNRESET))) m.state = MOSAIC_MESSAGE_CLOSED;
        if (count <= 0) return false;
        done += static_cast<uint64_t>(count);
        hasMoved = true;
      }
      return true;
    };
    auto* header = reinterpret_cast<uint8_t*>(isSend ? &m.signature : &m.received);
    if (!move(header, headerBytesMoved, sizeof m.signature)) return hasMoved;
    if (!isSend && !matches(&m.signature, &m.received)) return (m.state = MOSAIC_MESSAGE_MISMATCH);
    if (!move(m.data, m.moved, m.signature.bytes)) return hasMoved;
    m.state = MOSAIC_MESSAGE_DONE;
    queue.pop_front();
    return true;
  }

  bool progress() {
    bool hasMoved = false;
    for (size_t peer = 0; peer < sockets.size(); peer++) {
      const int fd = sockets[peer];
      const auto put = [fd](uint8_t* data, uint64_t bytes) { return ::send(fd, data, bytes, MSG_NOSIGNAL); };
      const auto take = [fd](uint8_t* data, uint64_t bytes) { return ::recv(fd, data, bytes, 0); };
      while (step(sends[peer], true, put)) hasMoved = true;
      while (step(receives[peer], false, take)) hasMoved = true;
    }
    return hasMoved;
  }

  /// Wakes when a socket is ready for a queued message, or `interrupt` wrote to the eventfd, which stays readable until
  /// the next call of `wait`.
  void wait(int64_t nanoseconds, int (*ready)(void*), void* arg) {
    eventfd_t count;
    eventfd_read(wakeFd, &count);
    if (ready(arg)) return;
    std::vector<pollfd> pollFds{{wakeFd, POLLIN, 0}};
    for (size_t peer = 0; peer < sockets.size(); peer++) {
      const int events = (receives[peer].empty() ? 0 : POLLIN) | (sends[peer].empty() ? 0 : POLLOUT);
      if (events) pollFds.push_back({sockets[peer], static_cast<short>(events), 0});
    }
    const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    ppoll(pollFds.data(), pollFds.size(), &limit, nullptr);
  }

  void cancel() {
    for (auto* queues : {&sends, &receives}) queues->assign(sockets.size(), {});
  }

  /// Data that was sent can still be received; later sends fail.
  void close() const {
    for (const int fd : sockets) shutdown(fd, SHUT_RDWR);
  }
  ~Minimal() {
    for (const int fd : sockets) ::close(fd);
    ::close(wakeFd);
  }
};

napi_value open(napi_env env, napi_callback_info) {
  auto* transport = new Minimal;
  transport->host = {
      transport,
      [](void* self, MosaicBootstrap* b, MosaicFailure* failure) { return Minimal::of(self).connect(*b, failure); },
      [](void* self) { eventfd_write(Minimal::of(self).wakeFd, 1); },
      [](void* self, MosaicMessage* message) { Minimal::of(self).sends[message->peer].push_back(message); },
      [](void* self, MosaicMessage* message) { Minimal::of(self).receives[message->peer].push_back(message); },
      nullptr,
      [](void* self) -> int { return Minimal::of(self).progress(); },
      [](void* self, int64_t ns, int (*ready)(void*), void* arg) { Minimal::of(self).wait(ns, ready, arg); },
      [](void*, uint32_t) { return 0; },
      [](void* self) { Minimal::of(self).cancel(); },
      [](void* self) { Minimal::of(self).close(); },
      [](void* self) { delete &Minimal::of(self); },
  };
  napi_value address;
  napi_create_double(env, static_cast<double>(reinterpret_cast<uintptr_t>(&transport->table)), &address);
  return address;
}

}  // namespace

NAPI_MODULE_INIT() {
  napi_value function;
  napi_create_function(env, "open", NAPI_AUTO_LENGTH, open, nullptr, &function);
  return function;
}
