// The control plane of ranks of one process. It uses the memory that their threads share, no socket and no extra
// thread.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "control/control_plane.h"

namespace mosaic {

/// State that the ranks of a world in one process share.
class InProcessWorld {
 public:
  /// `hosts`: host number of each rank, to simulate several hosts. Empty: all ranks are on one host.
  InProcessWorld(uint32_t size, int64_t timeoutNs, const std::vector<uint32_t>& hosts = {});

 private:
  friend class InProcessControl;

  struct Rank {
    bool hasJoined = false, hasExited = false, isLost = false;
    std::string lastOperation;
    ControlListener* listener = nullptr;
  };
  struct Split {
    std::map<uint32_t, int64_t> colors;  // by world rank
  };
  struct ReportedCall {
    uint64_t history;
    uint32_t rank;
  };

  const uint32_t size_;
  const int64_t timeoutNs_;
  const std::vector<Member> members_;
  const std::vector<std::string> hosts_;  // always empty

  // Recursive, because a listener is called under this lock and may detach its rank in that call, on the same thread.
  std::recursive_mutex mutex_;
  std::condition_variable_any stateChangedCondition_;
  std::vector<Rank> ranks_;
  std::map<std::string, std::string> values_;
  std::optional<std::pair<uint32_t, MosaicFailure>> failure_;
  std::map<std::pair<uint64_t, uint64_t>, Split> splits_;     // by group and index
  std::map<uint64_t, std::map<uint64_t, ReportedCall>> calls_;    // by group, by index
  std::set<uint64_t> mismatchedGroups_;                           // ids
};

class InProcessControl : public ControlPlane {
 public:
  InProcessControl(std::shared_ptr<InProcessWorld> world, uint32_t rank);
  ~InProcessControl() override;

  void join() override;
  const std::vector<Member>& members() const override { return world_->members_; }
  const std::vector<std::string>& hosts() const override { return world_->hosts_; }
  bool isSingleThreaded() const override { return true; }
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
  void leave(const std::string& lastOperation) override;

 private:
  using Lock = std::unique_lock<std::recursive_mutex>;
  void reportMismatch(uint64_t group, uint32_t a, uint32_t b);
  /// Returns why the ranks cannot connect any more, if they cannot. Under the lock.
  std::optional<MosaicFailure> peerFailure() const;
  template <typename Deliver>
  void notifyPeers(Deliver deliver);

  const std::shared_ptr<InProcessWorld> world_;
  const uint32_t rank_;
  // Under the world's lock.
  bool isInterrupted_ = false, hasJoined_ = false, hasLeft_ = false;
};

}  // namespace mosaic
