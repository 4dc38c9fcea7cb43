// Wakes a thread of this or another process of the host that sleeps in `poll`. It is a pipe, because other processes of
// this user can open it by /proc, like the shared memory itself. An eventfd would have to be sent through a socket.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace mosaic {

/// The end of the sleeping thread.
class WakePipe {
 public:
  /// Throws std::system_error if the process has no free descriptors.
  WakePipe() {
    if (pipe2(fds_, O_CLOEXEC | O_NONBLOCK) != 0) {
      throw std::system_error(errno, std::generic_category(), "connect: a pipe");
    }
  }
  ~WakePipe() {
    for (const int fd : fds_) ::close(fd);
  }
  WakePipe(const WakePipe&) = delete;
  WakePipe& operator=(const WakePipe&) = delete;

  /// The descriptor, to be polled for POLLIN.
  int fd() const { return fds_[0]; }
  /// The name by which `WakePipePeer` opens the pipe: its inode and its path.
  std::string name() const {
    struct stat info {};
    fstat(fds_[0], &info);
    return std::to_string(info.st_ino) + " /proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fds_[0]);
  }
  /// Makes the pipe unreadable until it is signalled again.
  void drain() const {
    char bytes[64];
    while (read(fds_[0], bytes, sizeof bytes) == sizeof bytes) continue;
  }

 private:
  int fds_[2];  // the write end is kept open, so that the read end does not report end-of-file
};

/// The end of a rank that wakes the sleeping thread.
class WakePipePeer {
 public:
  /// Opens the pipe of a rank. Returns null if that rank has ended. Throws std::system_error if the system denies
  /// access.
  static std::unique_ptr<WakePipePeer> open(const std::string& name) {
    const std::string path = name.substr(name.find(' ') + 1);
    // Also opened for reading, so that writing to the pipe of an ended process raises no SIGPIPE.
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno != ENOENT && errno != ESRCH) {
      throw std::system_error(errno, std::generic_category(), "connect: cannot open the pipe of a rank, " + path);
    }
    if (fd < 0) return nullptr;
    auto peer = std::unique_ptr<WakePipePeer>(new WakePipePeer(fd));
    // The descriptor number or the process id may have been reused.
    struct stat info {};
    const bool isSamePipe =
        fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode) && std::to_string(info.st_ino) == parseInode(name);
    return isSamePipe ? std::move(peer) : nullptr;
  }
  ~WakePipePeer() { ::close(fd_); }
  WakePipePeer(const WakePipePeer&) = delete;
  WakePipePeer& operator=(const WakePipePeer&) = delete;

  /// Makes the pipe readable. A full pipe is readable already.
  void signal() const {
    const char byte = 0;
    while (write(fd_, &byte, 1) < 0 && errno == EINTR) continue;
  }

 private:
  explicit WakePipePeer(int fd) : fd_(fd) {}
  static std::string parseInode(const std::string& name) { return name.substr(0, name.find(' ')); }

  const int fd_;
};

}  // namespace mosaic
