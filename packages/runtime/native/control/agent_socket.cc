#include "control/agent_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "control/wire.h"
#include "mosaic/failure.h"

namespace mosaic::control {

namespace {

constexpr size_t kReadBytes = 16384;
constexpr size_t kRetainedCapacity = 65536;

bool wouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

uid_t ownerOf(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.uid : static_cast<uid_t>(-1);
}

}  // namespace

bool AgentSocket::connect(const std::string& path) {
  close();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    throw Failure(MOSAIC_FAILURE_DEVICE, "connect: the path of the agent's socket has " + std::to_string(path.size()) +
                                             " bytes, expected 1 to " + std::to_string(sizeof address.sun_path - 1) +
                                             ": " + path + "; set TMPDIR or XDG_RUNTIME_DIR to a shorter path");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) {
    throw Failure(MOSAIC_FAILURE_DEVICE, std::string("connect: cannot create a socket: ") + std::strerror(errno));
  }
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close();
    return false;
  }
  if (ownerOf(fd_) != getuid()) {
    close();
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: the agent at " + path + " belongs to another user");
  }
  return true;
}

void AgentSocket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  in_.clear();
  out_.clear();
  read_ = sent_ = 0;
  finished_ = false;
}

void AgentSocket::send(const std::string& frame) {
  if (!isOpen() || finished_) return;
  out_ += frame;
  flush();
}

void AgentSocket::flush() {
  while (isOpen() && sent_ < out_.size()) {
    const ssize_t count = ::send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (count > 0) {
      sent_ += static_cast<size_t>(count);
    } else if (wouldBlock()) {
      return;
    } else {
      // What came before the end is still to be read; reading finds the end.
      sent_ = out_.size();
    }
  }
  out_.clear();
  sent_ = 0;
  if (out_.capacity() > kRetainedCapacity) out_.shrink_to_fit();
  if (finished_ && isOpen()) shutdown(fd_, SHUT_WR);
}

void AgentSocket::finish() {
  finished_ = true;
  flush();
}

bool AgentSocket::receive() {
  if (read_ == in_.size()) {
    in_.clear();
    if (in_.capacity() > kRetainedCapacity) in_.shrink_to_fit();
  } else {
    in_.erase(0, read_);
  }
  read_ = 0;
  const size_t before = in_.size();
  in_.resize(before + kReadBytes);
  const ssize_t count = recv(fd_, in_.data() + before, kReadBytes, 0);
  const bool blocked = count < 0 && wouldBlock();
  in_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return count > 0 || blocked;
}

AgentSocket::FrameContent AgentSocket::next() {
  uint32_t length = 0;
  if (in_.size() - read_ < sizeof length) return {};
  std::memcpy(&length, in_.data() + read_, sizeof length);
  if (length == 0 || length > kMaxFrameBytes) {
    throw ProtocolError("expected a frame of 1 to " + std::to_string(kMaxFrameBytes) + " bytes, received " +
                        std::to_string(length));
  }
  if (in_.size() - read_ - sizeof length < length) return {};
  const FrameContent content{in_.data() + read_ + sizeof length, length};
  read_ += sizeof length + length;
  return content;
}

}  // namespace mosaic::control
