// One rank's communication. A thread launches what is posted, in order, on a stream of its own; looks after it until it
// is done; and listens to the hub. It alone calls NCCL, and it never blocks, so that it always notices what goes wrong.
//
// An engine fails once: the first failure takes all later operations along, communicators are aborted, and the other
// ranks, which would otherwise wait for ever, learn the cause.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "cuda/events.h"
#include "engine/operation.h"
#include "engine/trace.h"
#include "hub/hub.h"

namespace mosaic::nccl {

struct EngineOptions {
  uint32_t rank = 0, size = 1;
  /// Of the hub.
  std::string host, token;
  int port = 0;
  ncclUniqueId id{};
  Settings settings;
  /// Make all connections between ranks now, so that none is made in the middle of a collective.
  bool warmUp = true;
  double connectSeconds = 300, timeoutSeconds = 300;
  /// When closing: seconds to wait for ranks that do not move; negative: as long as the timeout allows.
  double drainSeconds = -1;
  CUstream compute = nullptr;
  MosaicDevicePort* device = nullptr;
};

class Engine {
 public:
  /// Connects in the background; `connected` is called once, on the communication thread.
  Engine(const EngineOptions& options, Told connected);
  /// Aborts, and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;

  /// Returns the operation's number. Throws Failure once the engine has failed or is closed.
  uint64_t post(uint32_t group, const Call& call, const std::string& label);
  /// The same of a split; once it is settled, `partOf` has the group.
  uint64_t split(uint32_t group, int64_t color, const std::string& name, Told settled);
  /// The group that came of a split, and its number.
  std::pair<uint32_t, Group> partOf(uint64_t number);
  /// Later work on the compute stream runs after the operation. Waits until the operation is launched, which takes
  /// microseconds, for launching needs no other rank.
  void wait(uint64_t number);
  /// All operations up to this number are over.
  uint64_t completed() const { return completed_; }
  Payload payload(uint32_t group);

  void startTrace();
  /// Once all that was posted is over.
  void stopTrace(std::function<void(std::vector<TraceRecord>)> told);

  /// Accepts nothing more, finishes what was posted, says goodbye, then calls `left` on the communication thread.
  void close(std::function<void()> left);
  /// Fails whatever is under way, at once.
  void abort();

 private:
  /// What goes wrong here, and what the others shall hear of it; nothing, if they know.
  struct Trouble {
    MosaicFailure here;
    std::optional<MosaicFailure> there;
  };
  /// A rank that died, or failed for a cause of its own.
  struct Gone {
    std::optional<MosaicFailure> cause;
  };
  struct Suspicion {
    MosaicFailure failure;
    int64_t since;
  };

  // ── the communication thread (engine.cc)
  void run();
  void work();
  bool over();
  std::shared_ptr<Operation> head();
  std::shared_ptr<Operation> queued();
  void reap();
  void conclude(const std::shared_ptr<Operation>& op);
  /// Looks after everything until the condition holds. False: the engine has failed.
  bool until(const std::function<bool()>& condition);
  void rest(int64_t nanoseconds);
  void answerTraces();

  // ── connecting and leaving (connect.cc)
  void connect();
  void meet();
  void quiet(const Communicator& communicator, const std::string& where);
  void warmUp(Member& member);
  void leave();
  void closeCommunicators();

  // ── operations (launch.cc)
  uint64_t enqueue(std::shared_ptr<Operation> op);
  void launch(const std::shared_ptr<Operation>& op);
  void launchStage(Operation& op, const Stage& stage);
  void launchMessages(Operation& op, const Stage& stage);
  void launchSplit(const std::shared_ptr<Operation>& op);
  void openPart(Operation& op, const std::vector<int64_t>& colors);

  // ── what goes wrong (trouble.cc)
  std::optional<Trouble> trouble();
  std::optional<Trouble> connectingTrouble();
  std::optional<Trouble> deviceTrouble(const Operation& op);
  std::optional<Trouble> peerTrouble(const Operation& op);
  std::optional<Trouble> libraryTrouble();
  std::optional<Trouble> late(Operation& op);
  MosaicFailure timedOut(const Operation& op);
  void fail(const Trouble& trouble);
  std::string where(const Operation& op) const;
  std::string process(uint32_t rank) const;

  // ── news (news.cc)
  void listen();
  void hear(Frame frame, Reader& reader);
  Position position();

  const EngineOptions options_;
  Told connected_;
  MosaicDevicePort& device_;
  CUstream stream_ = nullptr;
  Events marks_{cuda::EVENT_DISABLE_TIMING}, times_{0};
  Trace traces_;
  int wake_ = -1;

  // Of the communication thread.
  Channel hub_;
  std::vector<uint32_t> pids_;
  bool welcome_ = false, connecting_ = true;
  int64_t connectBy_ = 0;
  std::optional<MosaicFailure> refused_;
  std::map<uint32_t, Gone> gone_;
  std::map<uint32_t, std::string> left_;                       // what each did last
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> needed_;   // by group and sequence: who left
  std::map<uint64_t, std::string> mismatches_;                 // by group
  std::map<std::pair<uint64_t, uint64_t>, std::vector<int64_t>> colors_;
  std::map<uint32_t, Position> positions_;
  std::optional<Suspicion> suspicion_;
  std::string last_;                                           // what this rank did last
  int64_t movedAt_ = 0;

  std::mutex mutex_;  // guards what follows, up to the flags
  std::condition_variable launched_;
  std::vector<std::shared_ptr<Member>> members_;
  std::map<uint64_t, uint32_t> parts_;  // groups, by the number of the split
  std::deque<std::shared_ptr<Operation>> queue_;
  uint64_t posted_ = 0;
  std::optional<MosaicFailure> failure_;
  uint64_t failedFrom_ = 0;
  std::function<void()> onLeft_;
  std::vector<std::pair<uint64_t, std::function<void(std::vector<TraceRecord>)>>> traceRequests_;
  bool ended_ = false;

  std::atomic<uint64_t> completed_{0};
  std::atomic<bool> failed_{false}, closing_{false}, stop_{false};
  std::thread thread_;
};

}  // namespace mosaic::nccl
