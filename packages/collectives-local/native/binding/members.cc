#include "../rendezvous.h"
#include "addon.h"

namespace mosaic {

namespace {

using SegmentHandle = Napi::External<std::shared_ptr<Segment>>;

constexpr uint64_t kWorldId = 1;
// Ranks of one thread that are closed one after the other would otherwise wait for one another.
constexpr int64_t kDrainTogetherNs = 5'000'000'000;

Addon& addonOf(Napi::Env env) { return *env.GetInstanceData<Addon>(); }

int64_t nanoseconds(Napi::Value seconds) {
  return static_cast<int64_t>(seconds.As<Napi::Number>().DoubleValue() * 1e9);
}

MosaicStream* streamOf(Napi::Value address) {
  auto* stream = reinterpret_cast<MosaicStream*>(static_cast<uintptr_t>(address.As<Napi::Number>().Int64Value()));
  if (stream == nullptr || stream->abi != MOSAIC_STREAM_ABI) {
    throw std::runtime_error("the device's stream has another version; use the same version of all @mosaic packages");
  }
  return stream;
}

std::shared_ptr<Group> worldGroup(uint32_t rank, uint32_t size) {
  auto group = std::make_shared<Group>();
  group->id = kWorldId;
  group->name = "world";
  group->rank = rank;
  for (uint32_t i = 0; i < size; i++) group->ranks.push_back(i);
  return group;
}

/// Where a rank comes from, and how it shall behave.
struct Opening {
  std::shared_ptr<Segment> segment;
  uint32_t rank;
  MosaicStream* stream;
  EngineOptions options;
};

Napi::Value openMember(Napi::Env env, const Opening& opening) {
  const auto& [segment, rank, stream, options] = opening;
  auto member = std::make_shared<Member>();
  member->stream = stream;
  member->groups.push_back(worldGroup(rank, segment->size()));
  member->engine = std::make_unique<Engine>(segment, rank, options);
  addonOf(env).sweep();
  addonOf(env).members.push_back(member);
  auto* held = new std::shared_ptr<Member>(member);
  return Handle::New(env, held, [](Napi::Env, std::shared_ptr<Member>* given) { delete given; });
}

// openSegment(size): memory for ranks of this process.
Napi::Value openSegment(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    auto* held = new std::shared_ptr<Segment>(Segment::anonymous(info[0].As<Napi::Number>().Uint32Value()));
    return SegmentHandle::New(info.Env(), held, [](Napi::Env, std::shared_ptr<Segment>* segment) { delete segment; });
  });
}

// joinSegment(segment, rank, stream, timeout): a rank of this process. The last one to come takes the handle's share of
// the memory along, so that the memory goes when the ranks do, not when the handle is collected.
Napi::Value joinSegment(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    std::shared_ptr<Segment>& held = *info[0].As<SegmentHandle>().Data();
    const uint32_t rank = info[1].As<Napi::Number>().Uint32Value();
    if (!held || held->page(rank).state != RankState::Absent) throw std::runtime_error("this rank has joined already");
    const EngineOptions options{nanoseconds(info[3]), kDrainTogetherNs};
    const Napi::Value member = openMember(info.Env(), {held, rank, streamOf(info[2]), options});
    bool complete = true;
    for (uint32_t each = 0; each < held->size(); each++) complete &= held->page(each).state != RankState::Absent;
    if (complete) held.reset();
    return member;
  });
}

struct Meeting {
  Rendezvous rendezvous;
  MosaicStream* stream;
  EngineOptions options;
  Napi::Promise::Deferred promise;
};

void conclude(Napi::Env env, const Meeting& meeting, const std::shared_ptr<Segment>& segment) {
  try {
    meeting.promise.Resolve(guarded(env, [&] {
      return openMember(env, {segment, meeting.rendezvous.rank, meeting.stream, meeting.options});
    }));
  } catch (const Napi::Error& error) {
    meeting.promise.Reject(error.Value());
  }
}

void refuse(Napi::Env env, const Meeting& meeting, const Failure& failure) {
  Napi::Error error = Napi::Error::New(env, failure.what());
  error.Set("failure", Napi::Number::New(env, failure.code()));
  meeting.promise.Reject(error.Value());
}

void runMeeting(Mailbox& mailbox, const Meeting& meeting) {
  try {
    auto segment = meet(meeting.rendezvous);
    mailbox.deliver([meeting, segment](Napi::Env env) { conclude(env, meeting, segment); });
  } catch (const Failure& failure) {
    mailbox.deliver([meeting, failure](Napi::Env env) { refuse(env, meeting, failure); });
  } catch (const std::exception& exception) {
    const Failure failure(MOSAIC_FAILURE_DEVICE, exception.what());
    mailbox.deliver([meeting, failure](Napi::Env env) { refuse(env, meeting, failure); });
  }
}

// connect(name, rank, size, connectTimeout, timeout, stream): a rank of its own process; a promise.
Napi::Value connect(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    Addon& addon = addonOf(info.Env());
    addon.sweep();
    const Meeting meeting{{info[0].As<Napi::String>().Utf8Value(), info[1].As<Napi::Number>().Uint32Value(),
                           info[2].As<Napi::Number>().Uint32Value(), nanoseconds(info[3]), &addon.ending},
                          streamOf(info[5]),
                          {nanoseconds(info[4]), -1},
                          Napi::Promise::Deferred::New(info.Env())};
    addon.mailbox->expect();
    Connecting& connecting = addon.connecting.emplace_back();
    connecting.thread = std::thread([mailbox = addon.mailbox, meeting, &connecting] {
      runMeeting(*mailbox, meeting);
      connecting.over = true;
    });
    return meeting.promise.Promise();
  });
}

// close(member): a promise of its having left.
Napi::Value close(const Napi::CallbackInfo& info) {
  const auto member = memberOf(info);
  const auto promise = Napi::Promise::Deferred::New(info.Env());
  if (!member->engine) {
    promise.Resolve(info.Env().Undefined());
    return promise.Promise();
  }
  const auto mailbox = addonOf(info.Env()).mailbox;
  mailbox->expect();
  member->engine->close([mailbox, member, promise] {
    mailbox->deliver([member, promise](Napi::Env env) {
      member->engine.reset();
      addonOf(env).sweep();
      promise.Resolve(env.Undefined());
    });
  });
  return promise.Promise();
}

// abortAll(): before the process ends, so that no stream waits for an operation any more.
void abortAll(const Napi::CallbackInfo& info) { addonOf(info.Env()).abortAll(); }

}  // namespace

void exportMembers(Napi::Env env, Napi::Object exports) {
  exports.Set("openSegment", Napi::Function::New(env, openSegment));
  exports.Set("joinSegment", Napi::Function::New(env, joinSegment));
  exports.Set("connect", Napi::Function::New(env, connect));
  exports.Set("close", Napi::Function::New(env, close));
  exports.Set("abortAll", Napi::Function::New(env, abortAll));
}

}  // namespace mosaic
