// One end of a connection that carries frames, and never blocks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hub/wire.h"

namespace mosaic::nccl {

class Channel {
 public:
  Channel() = default;
  /// Takes over a connected socket.
  explicit Channel(int fd);
  ~Channel();
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;

  int fd() const { return fd_; }
  /// The other end is gone.
  bool lost() const { return fd_ < 0; }
  /// More waits to be written: poll for POLLOUT too.
  bool full() const { return !out_.empty(); }

  void send(Writer frame);
  /// Writes what the socket takes.
  void flush();
  /// Reads what has come, and calls handle(frame, reader) for each whole frame.
  void receive(const std::function<void(Frame, Reader&)>& handle);
  void close();

 private:
  int fd_ = -1;
  std::vector<uint8_t> in_, out_;
};

/// Listens at any free port of `host`. Throws Failure.
int listenAt(const std::string& host, int& port);
/// Connects within `seconds`. Throws Failure.
int connectTo(const std::string& host, int port, double seconds);

}  // namespace mosaic::nccl
