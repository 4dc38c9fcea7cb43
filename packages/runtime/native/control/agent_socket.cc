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

constexpr size_t kReadChunkBytes = 16384;
constexpr size_t kMaxRetainedBytes = 65536;

bool isRetryableError() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

uid_t getPeerUid(int fd) {
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
    throw Failure(MOSAIC_FAILURE_DEVICE, "connect: expected a path of 1 to " +
                                             std::to_string(sizeof address.sun_path - 1) +
                                             " bytes for the agent's socket, received " +
                                             std::to_string(path.size()) + " bytes: " + path +
                                             "; set TMPDIR or XDG_RUNTIME_DIR to a shorter path");
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
  if (const uid_t uid = getPeerUid(fd_); uid != getuid()) {
    close();
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: expected an agent of uid " + std::to_string(getuid()) + " at " +
                                               path + ", received an agent of uid " + std::to_string(uid));
  }
  return true;
}

void AgentSocket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  inBuffer_.clear();
  outBuffer_.clear();
  readOffset_ = sentOffset_ = 0;
  isFinished_ = false;
}

void AgentSocket::send(const std::string& frame) {
  if (!isOpen() || isFinished_) return;
  outBuffer_ += frame;
  flush();
}

void AgentSocket::flush() {
  while (isOpen() && sentOffset_ < outBuffer_.size()) {
    const ssize_t count = ::send(fd_, outBuffer_.data() + sentOffset_, outBuffer_.size() - sentOffset_, MSG_NOSIGNAL);
    if (count > 0) {
      sentOffset_ += static_cast<size_t>(count);
    } else if (isRetryableError()) {
      return;
    } else {
      // Data that arrived before the connection was closed must still be read; reading then finds the end.
      sentOffset_ = outBuffer_.size();
    }
  }
  outBuffer_.clear();
  sentOffset_ = 0;
  if (outBuffer_.capacity() > kMaxRetainedBytes) outBuffer_.shrink_to_fit();
  if (isFinished_ && isOpen()) shutdown(fd_, SHUT_WR);
}

void AgentSocket::finish() {
  isFinished_ = true;
  flush();
}

bool AgentSocket::receive() {
  if (readOffset_ == inBuffer_.size()) {
    inBuffer_.clear();
    if (inBuffer_.capacity() > kMaxRetainedBytes) inBuffer_.shrink_to_fit();
  } else {
    inBuffer_.erase(0, readOffset_);
  }
  readOffset_ = 0;
  const size_t oldSize = inBuffer_.size();
  inBuffer_.resize(oldSize + kReadChunkBytes);
  const ssize_t count = recv(fd_, inBuffer_.data() + oldSize, kReadChunkBytes, 0);
  const bool hasNoData = count < 0 && isRetryableError();
  inBuffer_.resize(oldSize + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return count > 0 || hasNoData;
}

AgentSocket::FrameContent AgentSocket::next() {
  uint32_t length = 0;
  if (inBuffer_.size() - readOffset_ < sizeof length) return {};
  std::memcpy(&length, inBuffer_.data() + readOffset_, sizeof length);
  if (length == 0 || length > kMaxFrameBytes) {
    throw ProtocolError("expected a frame of 1 to " + std::to_string(kMaxFrameBytes) + " bytes, received " +
                        std::to_string(length));
  }
  if (inBuffer_.size() - readOffset_ - sizeof length < length) return {};
  const FrameContent content{inBuffer_.data() + readOffset_ + sizeof length, length};
  readOffset_ += sizeof length + length;
  return content;
}

}  // namespace mosaic::control
