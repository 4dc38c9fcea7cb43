// The control plane of a rank in a separate process: a thread that is connected to the agent of its host
// (docs/control-plane.md). The thread replies on behalf of the rank while JavaScript is blocked.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "control/agent_socket.h"
#include "control/control_plane.h"
#include "mosaic/event_fd.h"
#include "control/frames.h"

namespace mosaic {

struct AgentOptions {
  std::string path;    // path of the agent's socket
  std::string secret;  // the job's secret; empty if there is none
  std::string world;   // name: equal on all ranks of the world, unique in this agent's tree
  uint32_t attempt = 0, rank = 0, size = 1;
  /// Timeout of `join`, and of each `get`.
  int64_t timeoutNs = 300'000'000'000;
};

class AgentClient : public ControlPlane {
 public:
  /// Throws std::system_error if there are no free descriptors.
  explicit AgentClient(AgentOptions options);
  ~AgentClient() override;

  void join() override;
  const std::vector<Member>& members() const override { return members_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  bool isSingleThreaded() const override { return false; }
  void interrupt() override;
  void put(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key) override;
  std::optional<std::string> find(const std::string& key, int64_t timeoutNs) override;
  void attach(ControlListener* listener) override;
  void detach() override;
  void reportFailure(const MosaicFailure& cause) override;
  void reportCall(uint64_t group, uint64_t index, uint64_t history, const std::vector<uint32_t>& ranks = {}) override;
  void split(uint64_t group, uint64_t index, const std::vector<uint32_t>& ranks, int64_t color) override;
  void requestPositions(uint64_t request, const std::vector<uint32_t>& ranks) override;
  /// Returns once the agent has acknowledged the frame, so that the process may exit. Returns after at most 0.5 s.
  void leave(const std::string& lastOperation) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Event = std::function<void(ControlListener&)>;
  enum class State { Connecting, Joined, Ended };
  struct PendingGet {
    uint32_t callerCount = 0;
    std::optional<std::string> value;
  };

  void run();
  bool connect();
  void serveConnection();
  bool isFinished();
  bool hasJoinTimedOut(int64_t graceNs) const;
  void pause(int timeoutMs);
  void endConnection(const std::string& reason);
  void rejectJoin(MosaicFailureCode code, const std::string& message);
  void wake() const { wakeEvent_.signal(); }
  void send(const std::string& frame);

  void handleFrame(const control::AgentSocket::FrameContent& content);
  void deliver(Event event);
  void onMemberTable(control::MemberTable frame);
  void onValue(control::ValueMessage frame);
  void onLost(const control::Lost& frame);
  void onFailed(const control::Failed& frame);
  void replyPosition(const control::PositionsQuery& query);
  void replyCallLog(const control::CallLogQuery& query);
  /// Waits for the value of a key. Returns nothing if the timeout, an interrupt, the end of the connection or
  /// `isFinished` comes first.
  template <typename Condition>
  std::optional<std::string> waitForValue(const std::string& key, int64_t timeoutNs, Condition isFinished);

  const AgentOptions options_;
  const EventFd wakeEvent_;
  int64_t joinDeadlineNs_ = 0;  // deadline of `join`; constant once the thread runs

  std::mutex mutex_;  // guards the following members, up to the listener's mutex
  std::condition_variable stateChangedCondition_;
  control::AgentSocket socket_;
  State state_ = State::Connecting;
  std::optional<MosaicFailure> joinFailure_;    // why the rank cannot join
  std::optional<MosaicFailure> peerFailure_;  // the first failure of a peer; `get` fails with it
  std::map<std::string, PendingGet> pendingGets_;
  bool isLeaving_ = false, isStopped_ = false, isInterrupted_ = false;

  // Written before State::Joined, constant from then on.
  std::vector<Member> members_;
  std::vector<std::string> hosts_;

  std::mutex listenerMutex_;  // held while the listener is called; taken before mutex_
  ControlListener* listener_ = nullptr;
  bool isDetached_ = false;
  std::vector<Event> queuedEvents_;  // events before `attach`; each is called once

  std::thread thread_;
};

}  // namespace mosaic
