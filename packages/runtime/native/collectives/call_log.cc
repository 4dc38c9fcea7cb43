#include "collectives/call_log.h"

#include <algorithm>
#include <cstring>

namespace mosaic {

namespace {

constexpr size_t kKeptCalls = 32;
constexpr uint64_t kReportEvery = 16;
/// Values of the control plane are at most 64 KiB: a rank that took part in more series publishes some of them.
constexpr uint64_t kMostCounts = 4000;

}  // namespace

CallLog::Series& CallLog::append(uint64_t id, uint64_t group, uint64_t history,
                                 std::shared_ptr<const Description> description) {
  Series& series = series_[id];
  series.group = group;
  series.index++;
  series.history = history;
  series.calls.push_back({series.index, history, std::move(description)});
  if (series.calls.size() > kKeptCalls) series.calls.pop_front();
  return series;
}

std::vector<CallReport> CallLog::append(Operation& op) {
  std::vector<CallReport> reports;
  const Group& group = *op.group;
  const auto description =
      std::make_shared<const Description>(Description{op.signature, group.name, op.prefix()});
  const bool isBarrier = op.op() == OpKind::Barrier;
  if (op.signature.index > 0) {
    Series& series = append(group.id, group.id, group.history, description);
    op.calls.push_back({group.id, series.index, std::nullopt});
    if (isBarrier || series.index % kReportEvery == 0) {
      reports.push_back(series.report(group.id, series.calls.back()));
      series.reported = series.index;
    }
  }
  appendMessages(op, description, reports);
  if (!isBarrier) return reports;
  for (auto& [id, series] : series_) {
    if (series.group != group.id || series.reported == series.index) continue;
    reports.push_back(series.report(id, series.calls.back()));
    series.reported = series.index;
  }
  return reports;
}

/// Shapes of messages, and the shares that ranks of an allToAll give one another, concern two ranks each; all else that
/// must agree is in the history of the group.
void CallLog::appendMessages(Operation& op, const std::shared_ptr<const Description>& ofOperation,
                             std::vector<CallReport>& reports) {
  const bool isSendRecv = op.op() == OpKind::SendRecv;
  if (!isSendRecv && !(op.op() == OpKind::AllToAll && op.signature.ragged)) return;
  const Group& group = *op.group;
  const auto message = [&](const Message& each, bool isSend) {
    const uint32_t self = group.ranks[group.rank], peer = group.ranks[each.peer];
    const uint32_t from = isSend ? self : peer, to = isSend ? peer : self;
    const uint64_t id = messagesId(group.id, op.op(), from, to);
    const auto description =
        isSendRecv ? std::make_shared<const Description>(Description{each.signature, group.name, ofOperation->prefix})
                   : ofOperation;
    Series& series = append(id, group.id, historyAfter(series_[id].history, each.signature), description);
    if (series.ranks.empty()) series.ranks = {from, to};
    series.isPartOfCollective = !isSendRecv;
    if (!isSendRecv) return;
    op.calls.push_back({id, series.index, peer});
    if (series.index % kReportEvery != 0) return;
    reports.push_back(series.report(id, series.calls.back()));
    series.reported = series.index;
  };
  for (const Stage& stage : op.plan.stages) {
    for (const Message& each : stage.sends) message(each, true);
    for (const Message& each : stage.receives) message(each, false);
  }
}

std::vector<CallReport> CallLog::takePending() {
  std::vector<CallReport> reports;
  for (auto& [id, series] : series_) {
    for (const Call& call : series.calls) {
      if (call.index > series.reported) reports.push_back(series.report(id, call));
    }
    series.reported = series.index;
  }
  return reports;
}

std::vector<CallRecord> CallLog::calls(uint64_t series) const {
  std::vector<CallRecord> records;
  const auto found = series_.find(series);
  if (found == series_.end()) return records;
  for (const Call& call : found->second.calls) records.push_back({call.index, call.history, call.description->text()});
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
    if (message.find(call.description->text()) != std::string::npos) return call.description->prefix;
  }
  return "";
}

std::string CallLog::counts() const {
  std::vector<uint64_t> words{0};
  for (const auto& [id, series] : series_) {
    if (series.isPartOfCollective) continue;
    if (words[0]++ < kMostCounts) words.insert(words.end(), {id, series.index});
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
