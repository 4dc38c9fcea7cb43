// A connection to the agent of this host: a Unix domain stream socket that carries frames and never blocks.
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

  /// False when nothing listens there yet. Throws Failure for a path that cannot be, and for another user's agent.
  bool connect(const std::string& path);
  void close();
  bool isOpen() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  /// Queues a frame and writes what the socket takes.
  void send(const std::string& frame);
  void flush();
  /// Nothing more will be sent: the agent reads the end once it has read everything.
  void finish();
  size_t unsentBytes() const { return outBuffer_.size() - sentOffset_; }

  /// Reads what has arrived; false once the agent has closed the connection.
  bool receive();
  /// The next complete frame received, its type first; valid until the next call. Empty: none.
  /// Throws ProtocolError.
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
