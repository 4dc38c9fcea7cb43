#include "hub/channel.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "mosaic/failure.h"

namespace mosaic::nccl {

namespace {

constexpr uint32_t kLongestFrame = 1 << 24;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Failure network(const std::string& what, int code = errno) {
  return {MOSAIC_FAILURE_DEVICE, "nccl: " + what + ": " + std::strerror(code)};
}

Addresses resolve(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) throw Failure(MOSAIC_FAILURE_DEVICE, "nccl: host " + host + ": " + gai_strerror(code));
  return {found, &freeaddrinfo};
}

/// Small frames at once; a host that vanishes is noticed within seconds.
void tune(int fd) {
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Channel::Channel(int fd) : fd_(fd) { tune(fd); }
Channel::~Channel() { close(); }
Channel::Channel(Channel&& other) noexcept { *this = std::move(other); }
Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  return *this;
}

void Channel::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  out_.clear();
}

void Channel::send(Writer frame) {
  if (lost()) return;
  const auto& bytes = frame.done();
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  flush();
}

void Channel::flush() {
  while (!lost() && !out_.empty()) {
    const ssize_t sent = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      out_.erase(out_.begin(), out_.begin() + sent);
    } else if (again()) {
      return;
    } else {
      // What came before the end is still to be read; reading finds the end.
      out_.clear();
      return;
    }
  }
}

void Channel::receive(const std::function<void(Frame, Reader&)>& handle) {
  bool ended = false;
  while (!lost() && !ended) {
    uint8_t chunk[16384];
    const ssize_t got = ::recv(fd_, chunk, sizeof chunk, 0);
    if (got > 0) {
      in_.insert(in_.end(), chunk, chunk + got);
    } else if (got < 0 && again()) {
      break;
    } else {
      ended = true;
    }
  }
  size_t at = 0;
  for (uint32_t length; in_.size() - at >= sizeof length; at += sizeof length + length) {
    std::memcpy(&length, in_.data() + at, sizeof length);
    if (length == 0 || length > kLongestFrame) throw std::out_of_range("a frame of an impossible length");
    if (in_.size() - at - sizeof length < length) break;
    Reader reader(in_.data() + at + sizeof length, length);
    handle(reader.value<Frame>(), reader);
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(at));
  if (ended) close();
}

int listenAt(const std::string& host, int& port) {
  const Addresses addresses = resolve(host, 0);
  const int fd = socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw network("a socket");
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (bind(fd, addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(fd, 4096) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    const int code = errno;
    ::close(fd);
    throw network("listening at " + host, code);
  }
  char service[32];
  getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, nullptr, 0, service, sizeof service, NI_NUMERICSERV);
  port = std::atoi(service);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  return fd;
}

int connectTo(const std::string& host, int port, double seconds) {
  const std::string where = "rank 0 at " + host + ":" + std::to_string(port);
  const Addresses addresses = resolve(host, port);
  const int fd = socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw network("a socket");
  int code = connect(fd, addresses->ai_addr, addresses->ai_addrlen) == 0 ? 0 : errno;
  if (code == EINPROGRESS) {
    pollfd waiting{fd, POLLOUT, 0};
    socklen_t length = sizeof code;
    const int came = poll(&waiting, 1, static_cast<int>(std::min(seconds, 1e6) * 1e3));
    if (came == 0) code = ETIMEDOUT;
    else getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length);
  }
  if (code == 0) return fd;
  ::close(fd);
  throw Failure(MOSAIC_FAILURE_PEER_LOST, "nccl: " + where + " cannot be reached: " + std::strerror(code));
}

}  // namespace mosaic::nccl
