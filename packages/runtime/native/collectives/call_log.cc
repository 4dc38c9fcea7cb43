#include "collectives/call_log.h"

#include <algorithm>
#include <cstring>

namespace mosaic {

namespace {

constexpr size_t kMaxLoggedCalls = 32;
constexpr uint64_t kCallsPerReport = 16;
/// Values of the control plane are at most 64 KiB, so a rank with more sequences publishes only some of them.
constexpr uint64_t kMaxPublishedCounts = 4000;
/// Maximum calls per group that an exiting rank publishes, and maximum bytes of text per call.
constexpr size_t kMaxPublishedCalls = 8, kMaxPublishedTextBytes = 400;
constexpr size_t kMaxRecordedCallBytes = 1000;

/// Short, because the communication thread does nothing else while it waits for the counts of an exited rank.
constexpr int64_t kCountsTimeoutNs = 1'000'000'000;

std::string exitKey(uint32_t rank) { return "exit/" + std::to_string(rank); }

/// Truncates a text to at most `maxBytes` and an ellipsis, without splitting a UTF-8 character.
std::string truncateText(std::string text, size_t maxBytes) {
  if (text.size() <= maxBytes) return text;
  return text.erase(truncatedLength(text, maxBytes)) + "…";
}

void appendWord(std::string& out, uint64_t word) { out.append(reinterpret_cast<const char*>(&word), sizeof word); }

/// Reads words, and texts preceded by their length. Past the end it returns zeros and empty texts.
class PublishedReader {
 public:
  explicit PublishedReader(const std::string& text) : encoded_(text) {}
  bool isFinished() const { return offset_ + sizeof(uint64_t) > encoded_.size(); }
  uint64_t readWord() {
    uint64_t value = 0;
    if (isFinished()) return 0;
    std::memcpy(&value, encoded_.data() + offset_, sizeof value);
    offset_ += sizeof value;
    return value;
  }
  std::string readText() {
    const uint64_t bytes = std::min<uint64_t>(readWord(), encoded_.size() - offset_);
    offset_ += bytes;
    return encoded_.substr(offset_ - bytes, bytes);
  }

 private:
  const std::string& encoded_;
  size_t offset_ = 0;
};

}  // namespace

std::string CallLog::Description::text() const {
  if (number == 0) return describeOperation(signature, group);
  return "call #" + std::to_string(number) + " (" + group + "): " + recordedCall;
}

CallLog::CallSequence& CallLog::append(uint64_t id, const Group& group, uint64_t history,
                                 std::shared_ptr<const Description> description) {
  CallSequence& sequence = sequences_[id];
  sequence.group = group.id;
  if (sequence.index++ == 0) sequence.ancestors = group.ancestors;
  sequence.history = history;
  sequence.calls.push_back({sequence.index, history, std::move(description)});
  if (sequence.calls.size() > kMaxLoggedCalls) sequence.calls.pop_front();
  return sequence;
}

std::vector<CallReport> CallLog::append(Operation& op) {
  std::vector<CallReport> reports;
  const Group& group = *op.group;
  const bool isGroupSequence = op.signature.index > 0;
  if (!isGroupSequence && hasSignatures_) return reports;
  const auto description =
      std::make_shared<const Description>(Description{op.signature, group.name, op.prefix(), 0, ""});
  if (isGroupSequence) {
    CallSequence& sequence = append(group.id, group, group.history, description);
    op.calls.push_back({group.id, sequence.index, std::nullopt});
    if (!hasSignatures_ && sequence.index % kCallsPerReport == 0) reportLastCall(group.id, sequence, reports);
  }
  if (!hasSignatures_) appendMessages(op, description, reports);
  if (op.op() == OpKind::Barrier) reportAtBarrier(group, reports);
  return reports;
}

std::vector<CallReport> CallLog::append(const Group& group, std::string recordedCall) {
  std::vector<CallReport> reports;
  auto description = std::make_shared<Description>();
  description->number = group.recordedCount;
  description->group = group.name;
  description->recordedCall = truncateText(std::move(recordedCall), kMaxRecordedCallBytes);
  CallSequence& sequence = append(group.id, group, group.history, std::move(description));
  if (!hasSignatures_ && sequence.index % kCallsPerReport == 0) reportLastCall(group.id, sequence, reports);
  return reports;
}

void CallLog::reportLastCall(uint64_t id, CallSequence& sequence, std::vector<CallReport>& reports) {
  if (sequence.reportedIndex == sequence.index) return;
  reports.push_back(sequence.report(id, sequence.calls.back()));
  sequence.reportedIndex = sequence.index;
}

/// Ranks of a barrier must also have made the same calls in all groups that were split from its group. With signatures,
/// the barrier's messages themselves compare the calls of its group.
void CallLog::reportAtBarrier(const Group& barrier, std::vector<CallReport>& reports) {
  // Sequences of groups are first: if ranks diverged, the cause is more likely a call of a group than a later message.
  for (const bool isGroupPass : {true, false}) {
    for (auto& [id, sequence] : sequences_) {
      if (sequence.isGroupSequence() != isGroupPass) continue;
      const auto& ancestors = sequence.ancestors;
      const bool isDescendant = std::find(ancestors.begin(), ancestors.end(), barrier.id) != ancestors.end();
      if (isDescendant || (sequence.group == barrier.id && !hasSignatures_)) reportLastCall(id, sequence, reports);
    }
  }
}

/// Shapes of messages and the shares of an allToAll must agree between two ranks only. Everything else that must agree
/// is in the history of the group.
void CallLog::appendMessages(Operation& op, const std::shared_ptr<const Description>& operationDescription,
                             std::vector<CallReport>& reports) {
  const bool isSendRecv = op.op() == OpKind::SendRecv;
  if (!isSendRecv && !(op.op() == OpKind::AllToAll && op.signature.ragged)) return;
  const Group& group = *op.group;
  const auto appendMessage = [&](const Message& message, bool isSend) {
    const uint32_t ownRank = group.ranks[group.rank], peer = group.ranks[message.peer];
    const uint32_t from = isSend ? ownRank : peer, to = isSend ? peer : ownRank;
    const uint64_t id = messagesId(group.id, op.op(), from, to);
    const auto messageDescription = [&] {
      return std::make_shared<const Description>(
          Description{message.signature, group.name, operationDescription->prefix, 0, ""});
    };
    const auto description = isSendRecv ? messageDescription() : operationDescription;
    CallSequence& sequence = append(id, group, extendHistory(sequences_[id].history, message.signature), description);
    if (sequence.ranks.empty()) sequence.ranks = {from, to};
    sequence.isPartOfCollective = !isSendRecv;
    if (!isSendRecv) return;
    op.calls.push_back({id, sequence.index, peer});
    if (sequence.index % kCallsPerReport != 0) return;
    reportLastCall(id, sequence, reports);
    // Both ranks of a message must have made the same calls of the group before it, possibly only recorded ones.
    if (const auto entry = sequences_.find(group.id); entry != sequences_.end()) {
      reportLastCall(group.id, entry->second, reports);
    }
  };
  for (const Stage& stage : op.schedule.stages) {
    for (const Message& message : stage.sends) appendMessage(message, true);
    for (const Message& message : stage.receives) appendMessage(message, false);
  }
}

std::vector<CallReport> CallLog::collectPendingReports() {
  std::vector<CallReport> reports;
  for (const bool isGroupPass : {true, false}) {
    for (auto& [id, sequence] : sequences_) {
      if (sequence.isGroupSequence() == isGroupPass) reportPendingCalls(id, sequence, reports);
    }
  }
  return reports;
}

void CallLog::reportPendingCalls(uint64_t id, CallSequence& sequence, std::vector<CallReport>& reports) {
  for (const LoggedCall& call : sequence.calls) {
    if (call.index > sequence.allReportedIndex) reports.push_back(sequence.report(id, call));
  }
  sequence.reportedIndex = sequence.allReportedIndex = sequence.index;
}

std::vector<CallRecord> CallLog::calls(uint64_t sequence) const {
  std::vector<CallRecord> records;
  const auto entry = sequences_.find(sequence);
  if (entry == sequences_.end()) return records;
  for (const LoggedCall& call : entry->second.calls)
    records.push_back({call.index, call.history, call.description->text()});
  return records;
}

uint64_t CallLog::groupOf(uint64_t sequence) const {
  const auto entry = sequences_.find(sequence);
  return entry == sequences_.end() ? sequence : entry->second.group;
}

std::string CallLog::messagePrefix(uint64_t sequence, const std::string& message) const {
  const auto entry = sequences_.find(sequence);
  if (entry == sequences_.end()) return "";
  for (const LoggedCall& call : entry->second.calls) {
    if (message.find(call.description->text()) != std::string::npos) return call.description->prefix;
  }
  return "";
}

std::string CallLog::serializeCounts() const {
  std::vector<uint64_t> words{0};
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.isPartOfCollective) continue;
    if (words[0]++ < kMaxPublishedCounts) words.insert(words.end(), {id, sequence.index});
  }
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t)};
}

std::string CallLog::serializeCalls(size_t maxBytes) const {
  constexpr size_t kMaxCallBytes = kMaxPublishedTextBytes + 32, kGroupBytes = 16;  // bytes, at most
  std::string out;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence.isGroupSequence() || out.size() + kGroupBytes + kMaxCallBytes > maxBytes) continue;
    const size_t count =
        std::min({sequence.calls.size(), kMaxPublishedCalls, (maxBytes - out.size() - kGroupBytes) / kMaxCallBytes});
    appendWord(out, id);
    appendWord(out, count);
    for (size_t i = sequence.calls.size() - count; i < sequence.calls.size(); i++) {
      const LoggedCall& call = sequence.calls[i];
      const std::string text = truncateText(call.description->text(), kMaxPublishedTextBytes);
      appendWord(out, call.index);
      appendWord(out, call.history);
      appendWord(out, text.size());
      out += text;
    }
  }
  return out;
}

PublishedCalls CallLog::parseCalls(const std::string& publishedText) {
  PublishedCalls groups;
  PublishedReader reader(publishedText);
  while (!reader.isFinished()) {
    auto& calls = groups[reader.readWord()];
    for (uint64_t remaining = reader.readWord(); remaining > 0 && !reader.isFinished(); remaining--) {
      CallRecord call;
      call.index = reader.readWord();
      call.history = reader.readWord();
      call.description = reader.readText();
      calls.push_back(std::move(call));
    }
  }
  return groups;
}

CallCounts::CallCounts(const std::string& text) {
  std::vector<uint64_t> words(text.size() / sizeof(uint64_t));
  if (words.empty()) return;
  std::memcpy(words.data(), text.data(), words.size() * sizeof(uint64_t));
  for (size_t i = 1; i + 1 < words.size(); i += 2) counts_[words[i]] = words[i + 1];
  isComplete_ = counts_.size() == words[0];
}

void ExitCounts::publish(ControlPlane& control, uint32_t rank, const std::string& counts) {
  control.put(exitKey(rank), counts);
}

const CallCounts& ExitCounts::fetch(uint32_t rank, ControlPlane& control) {
  const auto [entry, isNew] = counts_.try_emplace(rank);
  if (!isNew) return entry->second;
  // The rank published its counts before it exited, so this takes one round trip. If they are missing, every call
  // counts as made: the lost control plane, the abort or the timeout is reported instead.
  if (const auto counts = control.find(exitKey(rank), kCountsTimeoutNs)) entry->second = CallCounts(*counts);
  return entry->second;
}

bool CallCounts::contains(uint64_t sequence, uint64_t index) const {
  const auto entry = counts_.find(sequence);
  return entry == counts_.end() ? !isComplete_ : entry->second >= index;
}

}  // namespace mosaic
