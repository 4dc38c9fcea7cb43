#include <bit>
#include <cmath>

#include <mosaic/call.h>

#include "addon.h"

namespace mosaic {

namespace {

std::shared_ptr<Group> groupOf(const Member& member, Napi::Value index) {
  return member.groups.at(index.As<Napi::Number>().Uint32Value());
}

// post(member, group, words, label): the operation's number.
Napi::Value post(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    Member& member = *memberOf(info);
    const auto words = info[2].As<Napi::Float64Array>();
    Words reader(words.Data(), words.ElementLength());
    Post post{groupOf(member, info[1]), readCall<Call>(reader), info[3].As<Napi::String>(), member.stream, nullptr};
    return Napi::Number::New(info.Env(), static_cast<double>(member.open().post(std::move(post))));
  });
}

// wait(member, number): later work on the device waits for the operation.
void wait(const Napi::CallbackInfo& info) {
  guarded(info.Env(), [&] {
    Member& member = *memberOf(info);
    const auto number = static_cast<uint64_t>(info[1].As<Napi::Number>().Int64Value());
    if (member.engine) member.engine->wait(number, *member.stream);
  });
}

// completed(member): all operations up to this number are over.
Napi::Value completed(const Napi::CallbackInfo& info) {
  const Member& member = *memberOf(info);
  return Napi::Number::New(info.Env(), member.engine ? static_cast<double>(member.engine->completed()) : INFINITY);
}

uint64_t hash(std::initializer_list<uint64_t> words) {
  uint64_t value = 0xcbf29ce484222325;  // FNV-1a over 64-bit words
  for (const uint64_t word : words) value = (value ^ word) * 0x100000001b3;
  return value;
}

struct Splitting {
  std::shared_ptr<Member> member;
  std::shared_ptr<Group> parent;
  std::string name;
  uint64_t index;  // of the split among the parent's operations: all ranks derive the same id from it
  double color;
  std::vector<double> colors;  // of all ranks
  Napi::Promise::Deferred promise;
};

/// Ranks of one color, in the order of the parent.
void makeGroup(Napi::Env env, const Splitting& split) {
  auto group = std::make_shared<Group>();
  group->id = hash({split.parent->id, split.index, std::bit_cast<uint64_t>(split.color)});
  group->name = split.name;
  for (uint32_t rank = 0; rank < split.colors.size(); rank++) {
    if (split.colors[rank] != split.color) continue;
    if (rank == split.parent->rank) group->rank = group->size();
    group->ranks.push_back(split.parent->ranks[rank]);
  }
  const auto ranks = Napi::Array::New(env, group->size());
  for (uint32_t i = 0; i < group->size(); i++) ranks.Set(i, Napi::Number::New(env, group->ranks[i]));
  split.member->groups.push_back(group);
  const auto result = Napi::Object::New(env);
  result.Set("index", Napi::Number::New(env, static_cast<double>(split.member->groups.size() - 1)));
  result.Set("rank", Napi::Number::New(env, group->rank));
  result.Set("ranks", ranks);
  split.promise.Resolve(result);
}

void rejectWith(Napi::Env env, const Napi::Promise::Deferred& promise, const MosaicFailure& failure) {
  Napi::Error error = Napi::Error::New(env, failure.message);
  error.Set("failure", Napi::Number::New(env, failure.code));
  promise.Reject(error.Value());
}

// split(member, group, color, name): a promise of { index, rank, ranks }.
Napi::Value split(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const auto member = memberOf(info);
    const auto parent = groupOf(*member, info[1]);
    const auto promise = Napi::Promise::Deferred::New(info.Env());
    const double color = info[2].As<Napi::Number>().DoubleValue();
    const auto splitting = std::make_shared<Splitting>(Splitting{
        member, parent, info[3].As<Napi::String>().Utf8Value(), parent->index + 1, color, {}, promise});
    splitting->colors.resize(parent->size());
    Call call;
    call.op = OpKind::Split;
    call.in = reinterpret_cast<uint8_t*>(&splitting->color);
    call.out = reinterpret_cast<uint8_t*>(splitting->colors.data());
    call.send.assign(parent->size(), sizeof(double));
    const auto mailbox = info.Env().GetInstanceData<Addon>()->mailbox;
    const auto settled = [mailbox, splitting](const MosaicFailure* failure) {
      if (!failure) return mailbox->deliver([splitting](Napi::Env env) { makeGroup(env, *splitting); });
      mailbox->deliver([splitting, copy = *failure](Napi::Env env) { rejectWith(env, splitting->promise, copy); });
    };
    member->open().post({parent, std::move(call), "", nullptr, settled});
    mailbox->expect();
    return promise.Promise();
  });
}

// traffic(member, group): bytes sent, bytes received, messages sent.
Napi::Value traffic(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const auto group = groupOf(*memberOf(info), info[1]);
    auto counts = Napi::Float64Array::New(info.Env(), 3);
    counts[0] = static_cast<double>(group->bytesSent.load());
    counts[1] = static_cast<double>(group->bytesReceived.load());
    counts[2] = static_cast<double>(group->messagesSent.load());
    return counts;
  });
}

void startTrace(const Napi::CallbackInfo& info) {
  guarded(info.Env(), [&] { memberOf(info)->open().startTrace(); });
}

// stopTrace(member): { name, start, end, label, bytesSent, bytesReceived }[].
Napi::Value stopTrace(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const Napi::Env env = info.Env();
    const auto records = memberOf(info)->open().stopTrace();
    const auto events = Napi::Array::New(env, records.size());
    for (size_t i = 0; i < records.size(); i++) {
      const auto event = Napi::Object::New(env);
      event.Set("lane", "communication");
      event.Set("name", opName(records[i].op));
      event.Set("start", static_cast<double>(records[i].start));
      event.Set("end", static_cast<double>(records[i].end));
      event.Set("label", records[i].label);
      event.Set("bytesSent", static_cast<double>(records[i].bytes.sent));
      event.Set("bytesReceived", static_cast<double>(records[i].bytes.received));
      events.Set(static_cast<uint32_t>(i), event);
    }
    return events;
  });
}

}  // namespace

void exportCalls(Napi::Env env, Napi::Object exports) {
  exports.Set("post", Napi::Function::New(env, post));
  exports.Set("wait", Napi::Function::New(env, wait));
  exports.Set("completed", Napi::Function::New(env, completed));
  exports.Set("split", Napi::Function::New(env, split));
  exports.Set("traffic", Napi::Function::New(env, traffic));
  exports.Set("startTrace", Napi::Function::New(env, startTrace));
  exports.Set("stopTrace", Napi::Function::New(env, stopTrace));
}

}  // namespace mosaic
