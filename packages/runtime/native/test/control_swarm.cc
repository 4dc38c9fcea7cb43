// As many ranks as a large job has, each with the client that real ranks have, against agents at PREFIX0, PREFIX1, …:
//
//   control_swarm PREFIX AGENTS RANKS_PER_AGENT
//
// Prints one JSON object: seconds of each step, until it has reached every rank. All ranks are threads of this process
// but the last one, which is a process of its own and is killed.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <memory>
#include <thread>

#include "control/agent_client.h"
#include "mosaic/clock.h"

namespace mosaic::test {

namespace {

constexpr int64_t kTimeoutNs = 120'000'000'000;
constexpr uint64_t kWorld = 1;

/// What all ranks together have received.
struct Counts {
  std::atomic<uint64_t> lost{0}, failed{0}, positions{0}, places{0}, colors{0}, mismatches{0}, controlLost{0};
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
    counts_.places += positions.size();
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

/// Until so many have been counted; the time that it took since `from`, or -1 after a minute.
double until(const std::atomic<uint64_t>& count, uint64_t expected, int64_t from) {
  while (count < expected) {
    if (secondsSince(from) > 60) return -1;
    usleep(200);
  }
  return secondsSince(from);
}

/// Carries out `body` for every rank at once, as their engines would; the time until all have returned.
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
  options.world = "swarm";
  options.rank = rank;
  options.size = size;
  options.timeoutNs = kTimeoutNs;
  return options;
}

int run(const std::string& prefix, uint32_t agents, uint32_t perAgent) {
  const uint32_t size = agents * perAgent;
  const pid_t victim = fork();
  if (victim == 0) {
    AgentClient client(optionsOf(prefix, size - 1, size, perAgent));
    client.join();
    for (;;) pause();
  }
  const double before = residentMegabytes();
  Counts counts;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (uint32_t rank = 0; rank + 1 < size; rank++) {
    ranks.push_back(std::make_unique<Rank>(optionsOf(prefix, rank, size, perAgent), counts));
  }
  const double joined = together(ranks, [](Rank& rank) { rank.control.join(); });
  for (auto& rank : ranks) rank->control.attach(rank.get());
  const double each = (residentMegabytes() - before) / static_cast<double>(ranks.size());

  ranks[0]->control.put("id", std::string(128, 'x'));
  const double values = together(ranks, [](Rank& rank) { rank.control.get("id"); });

  std::vector<uint32_t> all;
  for (uint32_t rank = 0; rank < size; rank++) all.push_back(rank);
  int64_t from = monotonicNs();
  ranks[0]->control.requestPositions(1, all);
  const double positions = until(counts.positions, 1, from);
  const uint64_t places = counts.places.exchange(0);
  counts.positions = 0;
  from = monotonicNs();
  for (auto& rank : ranks) rank->control.requestPositions(2, all);
  const double storm = until(counts.positions, ranks.size(), from);
  const double share = static_cast<double>(counts.places) / size / static_cast<double>(ranks.size());

  all.pop_back();  // the victim calls nothing
  from = monotonicNs();
  for (uint32_t rank = 0; rank + 1 < size; rank++) ranks[rank]->control.split(kWorld, 1, all, rank / perAgent);
  const double colors = until(counts.colors, ranks.size(), from);

  from = monotonicNs();
  for (uint32_t rank = 0; rank + 1 < size; rank++) ranks[rank]->control.reportCall(kWorld, 16, rank == 9 ? 8 : 7);
  const double mismatch = until(counts.mismatches, ranks.size(), from);

  from = monotonicNs();
  kill(victim, SIGKILL);
  const double death = until(counts.lost, ranks.size(), from);
  waitpid(victim, nullptr, 0);

  from = monotonicNs();
  ranks[3]->control.reportFailure(recordOf(MOSAIC_FAILURE_DEVICE, "rank 3 failed"));
  const double failure = until(counts.failed, ranks.size() - 1, from);

  const double leave = together(ranks, [](Rank& rank) { rank.control.leave("barrier #43 (world)"); });
  std::cout << "{\"ranks\":" << size << ",\"rendezvous\":" << joined << ",\"values\":" << values
            << ",\"positions\":" << positions << ",\"places\":" << places << ",\"storm\":" << storm
            << ",\"stormShare\":" << share << ",\"split\":" << colors << ",\"mismatch\":" << mismatch << ",\"death\":" << death << ",\"failure\":" << failure
            << ",\"leave\":" << leave << ",\"controlLost\":" << counts.controlLost
            << ",\"kilobytesPerRank\":" << each * 1024 << "}" << std::endl;
  ranks.clear();
  return 0;
}

}  // namespace

}  // namespace mosaic::test

int main(int count, char** given) {
  if (count != 4) return 2;
  return mosaic::test::run(given[1], static_cast<uint32_t>(std::stoul(given[2])),
                           static_cast<uint32_t>(std::stoul(given[3])));
}
