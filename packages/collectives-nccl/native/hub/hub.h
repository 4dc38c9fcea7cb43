// Where the ranks of a world meet, and hear of one another: a thread in the process of rank 0, one connection to each
// rank. NCCL moves the payload and knows nothing of processes that die, or of ranks that call different things; this
// does.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "hub/channel.h"
#include "hub/ledger.h"
#include "hub/messages.h"

namespace mosaic::nccl {

/// The group of all ranks.
constexpr uint64_t kWorld = 1;
/// The group that comes of a split: all ranks derive the same id.
uint64_t partOf(uint64_t parent, uint64_t index, int64_t color);

class Hub {
 public:
  /// Ranks that have not come after `seconds` are named to those that have. Throws Failure.
  Hub(const std::string& host, uint32_t size, double seconds);
  ~Hub();
  Hub(const Hub&) = delete;

  int port() const { return port_; }
  /// Who does not say it is turned away.
  const std::string& token() const { return token_; }
  /// Nobody is connected any more.
  bool over() const { return over_; }

 private:
  struct Guest {
    Channel channel;
    std::optional<uint32_t> rank;
    uint32_t pid = 0;
    std::string host;
    int version = 0;
    bool goodbye = false;
  };
  struct Splitting {
    std::map<uint32_t, int64_t> colors;  // by world rank
  };

  void run();
  void handle(Guest& guest, Frame frame, Reader& reader);
  void hello(Guest& guest, Reader& reader);
  void welcome();
  void refuse(const std::string& message, Guest* only = nullptr);
  void color(Guest& guest, Reader& reader);
  void missing();
  void sweep();
  Guest* guestOf(uint32_t rank);
  void toAll(const Writer& frame, const Guest* but = nullptr);
  void announce(const std::vector<Verdict>& verdicts);

  const uint32_t size_;
  const double seconds_;
  std::string token_;
  int port_ = 0, listener_ = -1, wake_ = -1;
  std::vector<std::unique_ptr<Guest>> guests_;
  bool complete_ = false, refused_ = false;
  Ledger ledger_;
  std::map<std::pair<uint64_t, uint64_t>, Splitting> splits_;
  std::atomic<bool> stop_{false}, over_{false};
  std::thread thread_;
};

}  // namespace mosaic::nccl
