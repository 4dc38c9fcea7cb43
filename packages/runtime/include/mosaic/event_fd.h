// Wakes a thread that sleeps in `poll`.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace mosaic {

class EventFd {
 public:
  /// Throws std::system_error if the process has no free descriptors.
  EventFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "connect: eventfd");
  }
  ~EventFd() { close(fd_); }
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  /// The descriptor, to be polled for POLLIN.
  int fd() const { return fd_; }
  /// May be called from any thread.
  void signal() const { eventfd_write(fd_, 1); }
  /// Makes the descriptor unreadable until the next signal.
  void reset() const {
    eventfd_t count;
    eventfd_read(fd_, &count);
  }

 private:
  const int fd_;
};

}  // namespace mosaic
