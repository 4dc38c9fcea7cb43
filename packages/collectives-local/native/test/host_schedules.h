// Tests the schedules of collectives over several hosts without a transport: their stages are executed in plain memory,
// and the bytes that each host sends to each other host are counted.
#pragma once

#include <test/engine_world.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "collectives/message_schedule.h"

namespace mosaic::test {

/// Host number of each rank: equal and unequal hosts, in and out of order, and with a single rank.
inline const std::vector<std::vector<uint32_t>> hostPlacements = {
    {0, 0, 1, 1}, {0, 1, 0, 1, 0}, {0, 0, 0, 1, 2, 2}, {2, 1}, {1, 0, 0}, {0, 0, 0}, {3, 1, 3, 3, 0, 1, 3}};

/// Bytes that the ranks of one host send to those of another.
using HostBytes = std::map<std::pair<uint32_t, uint32_t>, uint64_t>;

/// A collective on all ranks of a group whose ranks are on these hosts.
class ScheduleExecution {
 public:
  ScheduleExecution(std::vector<uint32_t> hosts, const std::vector<CollectiveCall>& calls) : hosts_(std::move(hosts)) {
    for (uint32_t rank = 0; rank < calls.size(); rank++) {
      Group group;
      group.rank = rank;
      group.hosts = hosts_;
      for (uint32_t r = 0; r < calls.size(); r++) group.ranks.push_back(r);
      schedules_.push_back(buildSchedule(group, calls[rank], makeSignature(group, calls[rank])));
    }
  }

  const std::vector<MessageSchedule>& schedules() const { return schedules_; }

  /// Executes all stages from `firstStage`, without reductions.
  HostBytes run(size_t firstStage = 0) {
    HostBytes hostBytes;
    for (size_t stage = firstStage; stage < schedules_[0].stages.size(); stage++) runStage(stage, hostBytes);
    return hostBytes;
  }

 private:
  using Queues = std::map<std::pair<uint32_t, uint32_t>, std::deque<std::vector<uint8_t>>>;

  void runStage(size_t index, HostBytes& hostBytes) {
    Queues sent;
    for (uint32_t rank = 0; rank < schedules_.size(); rank++) {
      check(schedules_[rank].stages.size() == schedules_[0].stages.size(), "all ranks have the same stages");
      const Stage& stage = schedules_[rank].stages[index];
      for (const Copy& copy : stage.copies) std::memcpy(copy.to, copy.from, copy.bytes);
      for (const Message& message : stage.sends) {
        check(message.peer != rank, "no rank sends to itself");
        sent[{rank, message.peer}].emplace_back(message.data, message.data + message.signature.bytes);
        if (hosts_[rank] != hosts_[message.peer]) {
          hostBytes[{hosts_[rank], hosts_[message.peer]}] += message.signature.bytes;
        }
      }
    }
    for (uint32_t rank = 0; rank < schedules_.size(); rank++) {
      for (const Message& message : schedules_[rank].stages[index].receives) {
        auto& queue = sent[{message.peer, rank}];
        if (queue.empty()) return check(false, "every receive has a send in the same stage");
        check(queue.front().size() == message.signature.bytes, "a receive has the bytes of its send");
        std::copy(queue.front().begin(), queue.front().end(), message.data);
        queue.pop_front();
      }
    }
    for (const auto& [pair, queue] : sent) check(queue.empty(), "every send has a receive in the same stage");
  }

  const std::vector<uint32_t> hosts_;
  std::vector<MessageSchedule> schedules_;
};

/// Returns the bytes between hosts if each rank's share of `counts` elements is sent to each other host once.
inline HostBytes bytesOncePerHost(const std::vector<uint32_t>& hosts, const std::vector<uint64_t>& counts) {
  const std::set<uint32_t> distinctHosts(hosts.begin(), hosts.end());
  HostBytes result;
  for (size_t rank = 0; rank < hosts.size(); rank++) {
    for (const uint32_t host : distinctHosts) {
      if (host != hosts[rank] && counts[rank] > 0) result[{hosts[rank], host}] += counts[rank] * sizeof(float);
    }
  }
  return result;
}

inline HostBytes withoutZeros(HostBytes hostBytes) {
  std::erase_if(hostBytes, [](const auto& entry) { return entry.second == 0; });
  return hostBytes;
}

/// The reduced shares of an all-reduce are sent to each other host once.
inline void testAllReduceOverHosts(const std::vector<uint32_t>& hosts, uint64_t count) {
  const auto n = static_cast<uint32_t>(hosts.size());
  std::vector<Floats> x(n, Floats(count, NAN));
  std::vector<CollectiveCall> calls;
  for (Floats& values : x) calls.push_back(allReduce(values));
  ScheduleExecution execution(hosts, calls);
  std::vector<uint64_t> counts;
  for (uint32_t rank = 0; rank < n; rank++) {
    const Reduction& reduction = *execution.schedules()[rank].stages[0].reduction;
    counts.push_back(reduction.count);
    for (uint64_t i = 0; i < reduction.count; i++) {
      reinterpret_cast<float*>(reduction.out)[i] = static_cast<float>(rank);
    }
  }
  check(execution.run(1) == bytesOncePerHost(hosts, counts), "reduced shares are sent to each other host once");
  check(std::none_of(x[0].begin(), x[0].end(), [](float element) { return std::isnan(element); }), "all are gathered");
  for (uint32_t rank = 1; rank < n; rank++) check(x[rank] == x[0], "all ranks have all shares");
}

/// Shares of an all-gather, some of them empty, are sent to each other host once.
inline void testAllGatherOverHosts(const std::vector<uint32_t>& hosts, uint64_t share) {
  const auto n = static_cast<uint32_t>(hosts.size());
  std::vector<uint64_t> counts;
  for (uint32_t rank = 0; rank < n; rank++) counts.push_back(rank % 3 == 1 ? 0 : share + rank);
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  std::vector<Floats> in, out(n, Floats(total, NAN));
  Floats expected;
  for (uint32_t rank = 0; rank < n; rank++) {
    in.push_back(valuesOf(rank, counts[rank]));
    expected.insert(expected.end(), in[rank].begin(), in[rank].end());
  }
  std::vector<CollectiveCall> calls;
  for (uint32_t rank = 0; rank < n; rank++) {
    calls.push_back(collective(OpKind::AllGather, counts[rank]));
    calls[rank].in = bytes(in[rank]);
    calls[rank].out = bytes(out[rank]);
    calls[rank].sendCounts = counts;
  }
  const HostBytes hostBytes = withoutZeros(ScheduleExecution(hosts, calls).run());
  check(hostBytes == bytesOncePerHost(hosts, counts), "gathered shares are sent to each other host once");
  for (uint32_t rank = 0; rank < n; rank++) check(out[rank] == expected, "all ranks gather all shares");
}

/// The tensor of a broadcast is sent from the root to each other host once.
inline void testBroadcastOverHosts(const std::vector<uint32_t>& hosts, uint32_t root, uint64_t count) {
  const auto n = static_cast<uint32_t>(hosts.size());
  std::vector<Floats> x(n, Floats(count, NAN));
  x[root] = valuesOf(root, count);
  std::vector<CollectiveCall> calls;
  for (Floats& values : x) {
    calls.push_back(collective(OpKind::Broadcast, count));
    calls.back().out = bytes(values);
    calls.back().root = root;
  }
  std::vector<uint64_t> counts(n, 0);
  counts[root] = count;
  const HostBytes hostBytes = withoutZeros(ScheduleExecution(hosts, calls).run());
  check(hostBytes == bytesOncePerHost(hosts, counts), "a broadcast tensor is sent to each other host once");
  for (uint32_t rank = 0; rank < n; rank++) check(x[rank] == x[root], "all ranks have the root's tensor");
}

inline void testHostSchedules() {
  for (const std::vector<uint32_t>& hosts : hostPlacements) {
    testAllReduceOverHosts(hosts, 10'007);
    for (const uint64_t count : {0ull, 1ull, 10'007ull, 20'011ull}) {
      testAllGatherOverHosts(hosts, count);
      for (uint32_t root = 0; root < hosts.size(); root++) testBroadcastOverHosts(hosts, root, count);
    }
  }
}

}  // namespace mosaic::test
