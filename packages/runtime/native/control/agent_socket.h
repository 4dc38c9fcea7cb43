// A connection to the agent of this host: a non-blocking Unix domain stream socket that carries frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mosaic::control {

class AgentSocket {
 public:
  AgentSocket() = default;
  ~AgentSocket() { close(); }
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;

  /// Returns false if no process listens there yet. Throws Failure for an invalid path, and for another user's agent.
  bool connect(const std::string& path);
  void close();
  bool isOpen() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  /// Queues a frame and writes as much as the socket accepts.
  void send(const std::string& frame);
  void flush();
  /// Announces that no more will be sent: the agent reads end-of-file after all frames.
  void finish();
  size_t unsentBytes() const { return outBuffer_.size() - sentOffset_; }

  /// Reads the data that has arrived. Returns false once the agent has closed the connection.
  bool receive();
  /// The next complete frame received, beginning with its type. Valid until the next call of `next`; empty if there is
  /// none. `next` throws ProtocolError.
  struct FrameContent {
    const char* data = nullptr;
    size_t size = 0;
  };
  FrameContent next();

 private:
  int fd_ = -1;
  std::string inBuffer_, outBuffer_;
  size_t readOffset_ = 0, sentOffset_ = 0;
  bool isFinished_ = false;
};

}  // namespace mosaic::control
