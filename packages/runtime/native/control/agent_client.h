// The control plane of a rank that is a process of its own: a thread that is connected to the agent of its host
// (docs/control-plane.md). The thread answers for the rank while JavaScript blocks.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "control/agent_socket.h"
#include "control/control_plane.h"
#include "control/frames.h"

namespace mosaic {

struct AgentOptions {
  std::string path;    // of the agent's socket
  std::string secret;  // of the job; empty where there is none
  std::string world;   // the same on all ranks, and on no others of this agent's tree
  uint32_t attempt = 0, rank = 0, size = 1;
  /// How long `join`, and each `get`, wait.
  int64_t timeoutNs = 300'000'000'000;
};

class AgentClient : public ControlPlane {
 public:
  /// Throws std::system_error if the system has no more descriptors.
  explicit AgentClient(AgentOptions options);
  ~AgentClient() override;

  void join() override;
  const std::vector<Member>& members() const override { return members_; }
  void interrupt() override;
  void put(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key) override;
  void attach(ControlListener* listener) override;
  void detach() override;
  void reportFailure(const MosaicFailure& cause) override;
  void reportCall(uint64_t group, uint64_t index, uint64_t history, const std::vector<uint32_t>& ranks = {}) override;
  void split(uint64_t group, uint64_t index, const std::vector<uint32_t>& ranks, int64_t color) override;
  void requestPositions(uint64_t request, const std::vector<uint32_t>& ranks) override;
  /// Returns once the agent has taken note, which it does at once, so that the process may end; at most after 0.5 s.
  void leave(const std::string& last) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Event = std::function<void(ControlListener&)>;
  enum class State { Connecting, Joined, Ended };
  struct Awaited {
    uint32_t callers = 0;
    std::optional<std::string> value;
  };

  void run();
  bool connect();
  void serve();
  bool isOver();
  bool isLate(int64_t graceNs) const;
  void pause(int milliseconds);
  void end(const std::string& reason);
  void refuse(MosaicFailureCode code, const std::string& message);
  void wake();
  void send(const std::string& frame);

  void handle(const control::AgentSocket::Content& content);
  void deliver(Event event);
  void onWelcome(control::Welcome frame);
  void onValue(control::Answer frame);
  void onLost(const control::Lost& frame);
  void onFailed(const control::Failed& frame);
  void answerPosition(const control::PositionsQuery& query);
  void answerCalls(const control::CallsQuery& query);
  std::string processOf(uint32_t rank, const std::string& reason) const;

  const AgentOptions options_;
  const int wake_;        // eventfd
  int64_t deadline_ = 0;  // of `join`; constant once the thread runs

  std::mutex mutex_;  // guards what follows, up to the listener's
  std::condition_variable changed_;
  control::AgentSocket socket_;
  State state_ = State::Connecting;
  std::optional<MosaicFailure> refusal_;    // why there is no joining
  std::optional<MosaicFailure> peerFailure_;  // the first that `get` must not wait beyond
  std::map<std::string, Awaited> awaited_;
  bool leaving_ = false, stop_ = false, interrupted_ = false;

  // Written before State::Joined, constant from then on.
  std::vector<Member> members_;
  std::vector<std::string> hosts_;

  std::mutex listenerMutex_;  // held while the listener is called; taken before mutex_
  ControlListener* listener_ = nullptr;
  bool detached_ = false;
  std::vector<Event> backlog_;  // what happened before `attach`; each is called once

  std::thread thread_;
};

}  // namespace mosaic
