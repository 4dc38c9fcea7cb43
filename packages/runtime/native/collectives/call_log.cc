#include "collectives/call_log.h"

#include <algorithm>
#include <cstring>

namespace mosaic {

namespace {

constexpr size_t kKeptCalls = 32;
constexpr uint64_t kReportEvery = 16;
/// Values of the control plane are at most 64 KiB: a rank that took part in more series than fit publishes the first ones.
constexpr size_t kMostCounts = 4000;

}  // namespace

CallLog::Series& CallLog::appendTo(uint64_t id, const Operation& op, const Signature& signature, uint64_t history) {
  Series& series = series_[id];
  series.group = op.group->id;
  series.index++;
  series.history = history;
  series.calls.push_back({{series.index, history, descriptionOf(signature, op.group->name)}, op.prefix()});
  if (series.calls.size() > kKeptCalls) series.calls.pop_front();
  return series;
}

std::vector<CallReport> CallLog::append(Operation& op, uint64_t history) {
  std::vector<CallReport> reports;
  const auto report = [&](uint64_t id, Series& series) {
    series.reported = series.index;
    reports.push_back({id, series.index, series.history});
  };
  const bool isBarrier = op.op() == OpKind::Barrier;
  if (op.signature.index > 0) {
    const uint64_t id = op.group->id;
    Series& series = appendTo(id, op, op.signature, history);
    op.calls.push_back({id, series.index, std::nullopt});
    if (isBarrier || series.index % kReportEvery == 0) report(id, series);
  }
  const auto message = [&](const Message& each, bool isSend) {
    const uint32_t self = op.group->ranks[op.group->rank], peer = op.group->ranks[each.peer];
    const uint64_t id = isSend ? messagesId(op.group->id, self, peer) : messagesId(op.group->id, peer, self);
    Series& series = appendTo(id, op, each.signature, historyAfter(series_[id].history, each.signature));
    op.calls.push_back({id, series.index, peer});
    if (series.index % kReportEvery == 0) report(id, series);
  };
  // Equal shares follow from the shape, which the collective's own history has; given ones differ between ranks.
  if (op.op() == OpKind::SendRecv || op.signature.ragged) {
    for (const Stage& stage : op.plan.stages) {
      for (const Message& each : stage.sends) message(each, true);
      for (const Message& each : stage.receives) message(each, false);
    }
  }
  if (isBarrier) {
    for (auto& [id, series] : series_) {
      if (series.group == op.group->id && series.reported < series.index) report(id, series);
    }
  }
  return reports;
}

std::vector<CallReport> CallLog::takePending() {
  std::vector<CallReport> reports;
  for (auto& [id, series] : series_) {
    for (const Call& call : series.calls) {
      if (call.record.index > series.reported) reports.push_back({id, call.record.index, call.record.history});
    }
    series.reported = series.index;
  }
  return reports;
}

std::vector<CallRecord> CallLog::calls(uint64_t series) const {
  std::vector<CallRecord> records;
  const auto found = series_.find(series);
  if (found == series_.end()) return records;
  for (const Call& call : found->second.calls) records.push_back(call.record);
  return records;
}

uint64_t CallLog::groupOf(uint64_t series) const {
  const auto found = series_.find(series);
  return found == series_.end() ? series : found->second.group;
}

std::string CallLog::prefixOf(uint64_t series, const std::string& message) const {
  const auto found = series_.find(series);
  if (found == series_.end()) return "";
  for (const Call& call : found->second.calls) {
    if (message.find(call.record.description) != std::string::npos) return call.prefix;
  }
  return "";
}

std::string CallLog::counts() const {
  std::vector<uint64_t> words{series_.size()};
  for (const auto& [id, series] : series_) {
    if (words.size() > 2 * kMostCounts) break;
    words.insert(words.end(), {id, series.index});
  }
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t)};
}

CallCounts::CallCounts(const std::string& text) {
  std::vector<uint64_t> words(text.size() / sizeof(uint64_t));
  if (words.empty()) return;
  std::memcpy(words.data(), text.data(), words.size() * sizeof(uint64_t));
  for (size_t i = 1; i + 1 < words.size(); i += 2) counts_[words[i]] = words[i + 1];
  isComplete_ = counts_.size() == words[0];
}

bool CallCounts::has(uint64_t series, uint64_t index) const {
  const auto found = counts_.find(series);
  return found == counts_.end() ? !isComplete_ : found->second >= index;
}

}  // namespace mosaic
