#include <cmath>

#include "binding/addon.h"

namespace mosaic {

namespace {

uint32_t groupArgument(const Napi::CallbackInfo& info) { return info[1].As<Napi::Number>().Uint32Value(); }
uint64_t operationNumberArgument(const Napi::CallbackInfo& info) {
  return static_cast<uint64_t>(info[1].As<Napi::Number>().Int64Value());
}

// post(engine, group, words, label): returns the operation's number.
Napi::Value post(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto words = info[2].As<Napi::Float64Array>();
    const CollectiveCall call = CollectiveCall::read(words.Data(), words.ElementLength());
    const uint64_t number = getEngine(info)->post(groupArgument(info), call, info[3].As<Napi::String>());
    return Napi::Number::New(info.Env(), static_cast<double>(number));
  });
}

// record(engine, group, description): adds a call that every rank of the group makes to the group's history.
void record(const Napi::CallbackInfo& info) {
  rethrowAsJsError(info.Env(),
                   [&] { getEngine(info)->record(groupArgument(info), info[2].As<Napi::String>().Utf8Value()); });
}

// wait(engine, number): makes later work on the device wait for the operation.
void wait(const Napi::CallbackInfo& info) {
  rethrowAsJsError(info.Env(), [&] {
    if (const auto engine = findEngine(info)) engine->wait(operationNumberArgument(info));
  });
}

// completed(engine): returns the number up to which all operations have completed.
Napi::Value completed(const Napi::CallbackInfo& info) {
  const auto engine = findEngine(info);
  return Napi::Number::New(info.Env(), engine ? static_cast<double>(engine->completedNumber()) : INFINITY);
}

// failure(engine): returns [code, message] of the engine's failure, or undefined if it has not failed.
Napi::Value failure(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto failure = getEngine(info)->failure();
    if (!failure) return info.Env().Undefined();
    const auto codeAndMessage = Napi::Array::New(info.Env(), 2);
    codeAndMessage.Set(uint32_t{0}, failure->code);
    codeAndMessage.Set(uint32_t{1}, failure->message);
    return codeAndMessage;
  });
}

// split(engine, group, color, name, completion): returns the number of the operation, for `splitResult`.
Napi::Value split(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    Addon& addon = getAddon(info);
    const int64_t color = info[2].As<Napi::Number>().Int64Value();
    const uint64_t number = getEngine(info)->split(groupArgument(info), color, info[3].As<Napi::String>().Utf8Value(),
                                                   addon.completion(info[4]));
    addon.completions->expect();
    return Napi::Number::New(info.Env(), static_cast<double>(number));
  });
}

// splitResult(engine, number): returns { index, rank, ranks } of the group that a split has created.
Napi::Value splitResult(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto engine = getEngine(info);
    const uint32_t index = engine->splitGroupNumber(operationNumberArgument(info));
    const auto group = engine->getGroup(index);
    const auto ranks = Napi::Array::New(info.Env(), group->size());
    for (uint32_t i = 0; i < group->size(); i++) ranks.Set(i, group->ranks[i]);
    const auto result = Napi::Object::New(info.Env());
    result.Set("index", index);
    result.Set("rank", group->rank);
    result.Set("ranks", ranks);
    return result;
  });
}

// traffic(engine, group): returns bytes sent, bytes received, messages sent.
Napi::Value traffic(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const Payload payload = getEngine(info)->getPayload(groupArgument(info));
    const auto counts = Napi::Array::New(info.Env(), 3);
    counts.Set(uint32_t{0}, static_cast<double>(payload.bytesSent));
    counts.Set(uint32_t{1}, static_cast<double>(payload.bytesReceived));
    counts.Set(uint32_t{2}, static_cast<double>(payload.messagesSent));
    return counts;
  });
}

// markStep(engine, reserved, peak): records that the rank has finished a step. Device memory is in bytes.
void markStep(const Napi::CallbackInfo& info) {
  const auto bytes = [&](size_t i) { return static_cast<uint64_t>(info[i].As<Napi::Number>().Int64Value()); };
  if (const auto engine = findEngine(info)) engine->markStep(bytes(1), bytes(2));
}

void startTrace(const Napi::CallbackInfo& info) {
  rethrowAsJsError(info.Env(), [&] { getEngine(info)->startTrace(); });
}

// stopTrace(engine, completion): once the completion has arrived, `takeTrace` returns the records.
void stopTrace(const Napi::CallbackInfo& info) {
  rethrowAsJsError(info.Env(), [&] {
    const auto engine = getEngine(info);
    Addon& addon = getAddon(info);
    const auto records = addon.traces[info[1].As<Napi::Number>().DoubleValue()] =
        std::make_shared<std::vector<TraceRecord>>();
    addon.completions->expect();
    engine->stopTrace([records, complete = addon.completion(info[1])](std::vector<TraceRecord> trace) {
      *records = std::move(trace);
      complete(nullptr);
    });
  });
}

// takeTrace(completion): returns { lane, name, start, end, label, bytesSent, bytesReceived }[].
Napi::Value takeTrace(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const auto entry = getAddon(info).traces.extract(info[0].As<Napi::Number>().DoubleValue());
  const auto events = Napi::Array::New(env);
  if (!entry) return events;
  uint32_t index = 0;
  for (const TraceRecord& record : *entry.mapped()) {
    const auto event = Napi::Object::New(env);
    event.Set("lane", "communication");
    event.Set("name", opName(record.op));
    event.Set("start", static_cast<double>(record.start));
    event.Set("end", static_cast<double>(record.end));
    event.Set("label", record.label);
    event.Set("bytesSent", static_cast<double>(record.bytesSent));
    event.Set("bytesReceived", static_cast<double>(record.bytesReceived));
    events.Set(index++, event);
  }
  return events;
}

}  // namespace

void exportCalls(Napi::Env env, Napi::Object exports) {
  exports.Set("post", Napi::Function::New(env, post));
  exports.Set("record", Napi::Function::New(env, record));
  exports.Set("wait", Napi::Function::New(env, wait));
  exports.Set("completed", Napi::Function::New(env, completed));
  exports.Set("failure", Napi::Function::New(env, failure));
  exports.Set("split", Napi::Function::New(env, split));
  exports.Set("splitResult", Napi::Function::New(env, splitResult));
  exports.Set("traffic", Napi::Function::New(env, traffic));
  exports.Set("markStep", Napi::Function::New(env, markStep));
  exports.Set("startTrace", Napi::Function::New(env, startTrace));
  exports.Set("stopTrace", Napi::Function::New(env, stopTrace));
  exports.Set("takeTrace", Napi::Function::New(env, takeTrace));
}

}  // namespace mosaic
