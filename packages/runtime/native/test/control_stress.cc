// Connects as many ranks as a large job has, each with the real client, to agents at PREFIX0, PREFIX1, …:
//
//   control_stress PREFIX AGENTS RANKS_PER_AGENT
//
// Prints one JSON object with the seconds of each step until it has reached every rank. All ranks are threads of this
// process, except the last one, which is a separate process and is killed.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <memory>
#include <thread>

#include "control/agent_client.h"
#include "json.h"
#include "mosaic/clock.h"

namespace mosaic::test {

namespace {

constexpr int64_t kTimeoutNs = 120'000'000'000;
constexpr uint64_t kWorld = 1;

/// Numbers of events that all ranks together have received.
struct Counts {
  std::atomic<uint64_t> lost{0}, failed{0}, positions{0}, positionRecords{0}, colors{0}, mismatches{0}, controlLost{0};
};

class Rank : public ControlListener {
 public:
  Rank(AgentOptions options, Counts& counts) : rank_(options.rank), counts_(counts), control(std::move(options)) {}

  void onPeerLost(uint32_t, const std::string&) override { counts_.lost++; }
  void onPeerFailed(uint32_t, const MosaicFailure&) override { counts_.failed++; }
  void onPeerExited(uint32_t) override {}
  void onMismatch(uint64_t, const std::string&) override { counts_.mismatches++; }
  void onColors(uint64_t, uint64_t, std::vector<int64_t>) override { counts_.colors++; }
  void onPositions(uint64_t, std::vector<Position> positions) override {
    counts_.positionRecords += positions.size();
    counts_.positions++;
  }
  void onControlLost(const std::string&) override { counts_.controlLost++; }
  Position position() override {
    Position at;
    at.activity = Position::Activity::Running;
    at.group = kWorld;
    at.sequence = 42 - (rank_ == 7);
    at.operation = rank_ == 7 ? "sendRecv #41 (world)" : "allGather #42 (world)";
    return at;
  }
  std::vector<CallRecord> calls(uint64_t) override { return {{16, rank_ == 9 ? 8u : 7u, "allReduce #16 (world)"}}; }

 private:
  const uint32_t rank_;
  Counts& counts_;

 public:
  AgentClient control;
};

double secondsSince(int64_t from) { return static_cast<double>(monotonicNs() - from) * 1e-9; }

double residentMegabytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

/// Waits until `count` has reached `expected`. Returns the seconds since `from`, or -1 after a minute.
double waitUntil(const std::atomic<uint64_t>& count, uint64_t expected, int64_t from) {
  while (count < expected) {
    if (secondsSince(from) > 60) return -1;
    usleep(200);
  }
  return secondsSince(from);
}

/// Runs `body` for all ranks at the same time, as their engines would. Returns the time until all calls have returned.
template <typename Body>
double together(std::vector<std::unique_ptr<Rank>>& ranks, Body body) {
  const int64_t from = monotonicNs();
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&body, &rank] {
      try {
        body(*rank);
      } catch (const Failure& failure) {
        std::cerr << failure.what() << std::endl;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return secondsSince(from);
}

AgentOptions optionsOf(const std::string& prefix, uint32_t rank, uint32_t size, uint32_t perAgent) {
  AgentOptions options;
  options.path = prefix + std::to_string(rank / perAgent);
  options.world = "stress";
  options.rank = rank;
  options.size = size;
  options.timeoutNs = kTimeoutNs;
  return options;
}

class StressTest {
 public:
  StressTest(const std::string& prefix, uint32_t agents, uint32_t perAgent)
      : perAgent_(perAgent), size_(agents * perAgent) {
    victim_ = fork();
    if (victim_ == 0) {
      AgentClient client(optionsOf(prefix, size_ - 1, size_, perAgent));
      client.join();
      for (;;) pause();
    }
    for (uint32_t rank = 0; rank + 1 < size_; rank++) {
      ranks_.push_back(std::make_unique<Rank>(optionsOf(prefix, rank, size_, perAgent), counts_));
      others_.push_back(rank);
    }
  }

  void run() {
    join();
    ranks_[0]->control.put("id", std::string(128, 'x'));
    report("values", together(ranks_, [](Rank& rank) { rank.control.get("id"); }));
    positions();
    split();
    calls();
    die();
    fail();
    report("leave", together(ranks_, [](Rank& rank) { rank.control.leave("barrier #43 (world)"); }));
    report("controlLost", static_cast<double>(counts_.controlLost));
    report("ranks", size_);
    std::cout << "{" << report_ << "}" << std::endl;
  }

 private:
  void report(const char* name, double value) {
    report_ += (report_.empty() ? "" : ",") + quoted(name) + ":" + std::to_string(value);
  }
  void join() {
    const double before = residentMegabytes();
    report("rendezvous", together(ranks_, [](Rank& rank) { rank.control.join(); }));
    for (auto& rank : ranks_) rank->control.attach(rank.get());
    report("kilobytesPerRank", (residentMegabytes() - before) * 1024 / static_cast<double>(ranks_.size()));
  }
  /// Requests the positions of all ranks: first from one rank, then from all at the same time.
  void positions() {
    std::vector<uint32_t> all = others_;
    all.push_back(size_ - 1);
    int64_t from = monotonicNs();
    ranks_[0]->control.requestPositions(1, all);
    report("positions", waitUntil(counts_.positions, 1, from));
    report("positionRecords", static_cast<double>(counts_.positionRecords.exchange(0)));
    counts_.positions = 0;
    from = monotonicNs();
    for (auto& rank : ranks_) rank->control.requestPositions(2, all);
    report("storm", waitUntil(counts_.positions, ranks_.size(), from));
    report("stormShare", static_cast<double>(counts_.positionRecords) / size_ / static_cast<double>(ranks_.size()));
  }
  /// Splits all ranks except the last, whose process only waits.
  void split() {
    const int64_t from = monotonicNs();
    for (const uint32_t rank : others_) ranks_[rank]->control.split(kWorld, 1, others_, rank / perAgent_);
    report("split", waitUntil(counts_.colors, ranks_.size(), from));
  }
  void calls() {
    const int64_t from = monotonicNs();
    for (const uint32_t rank : others_) ranks_[rank]->control.reportCall(kWorld, 16, rank == 9 ? 8 : 7);
    report("mismatch", waitUntil(counts_.mismatches, ranks_.size(), from));
  }
  void die() {
    const int64_t from = monotonicNs();
    kill(victim_, SIGKILL);
    report("death", waitUntil(counts_.lost, ranks_.size(), from));
    waitpid(victim_, nullptr, 0);
  }
  void fail() {
    const int64_t from = monotonicNs();
    ranks_[3]->control.reportFailure(failureRecord(MOSAIC_FAILURE_DEVICE, "rank 3 failed"));
    report("failure", waitUntil(counts_.failed, ranks_.size() - 1, from));
  }

  const uint32_t perAgent_, size_;
  pid_t victim_ = 0;
  Counts counts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<uint32_t> others_;  // all ranks except the one that is killed
  std::string report_;
};

}  // namespace

}  // namespace mosaic::test

int main(int count, char** given) {
  if (count != 4) return 2;
  const auto number = [&](int i) { return static_cast<uint32_t>(std::stoul(given[i])); };
  mosaic::test::StressTest(given[1], number(2), number(3)).run();
}
