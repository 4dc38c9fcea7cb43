#include "binding/addon.h"
#include "control/agent_client.h"
#include "control/in_process.h"

namespace mosaic {

namespace {

using WorldHandle = Napi::External<std::shared_ptr<InProcessWorld>>;

int64_t nanoseconds(Napi::Value seconds) {
  return static_cast<int64_t>(seconds.As<Napi::Number>().DoubleValue() * 1e9);
}

template <typename T>
T* pointer(Napi::Value address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address.As<Napi::Number>().Int64Value()));
}

// openWorld(size, seconds, hosts): what ranks of this process share; they wait so long for one another. `hosts` has the
// number of each rank's host, or nothing.
Napi::Value openWorld(const Napi::CallbackInfo& info) {
  const auto given = info[2].As<Napi::Uint32Array>();
  const std::vector<uint32_t> hosts(given.Data(), given.Data() + given.ElementLength());
  const uint32_t size = info[0].As<Napi::Number>().Uint32Value();
  const auto world = std::make_shared<InProcessWorld>(size, nanoseconds(info[1]), hosts);
  auto* reference = new std::shared_ptr<InProcessWorld>(world);
  return WorldHandle::New(info.Env(), reference,
                          [](Napi::Env, std::shared_ptr<InProcessWorld>* finalized) { delete finalized; });
}

std::unique_ptr<ControlPlane> controlOf(const Napi::Object& given, const EngineOptions& options) {
  const Napi::Value world = given.Get("world");
  if (world.IsExternal()) return std::make_unique<InProcessControl>(*world.As<WorldHandle>().Data(), options.rank);
  const auto agent = given.Get("agent").As<Napi::Object>();
  const auto text = [&](const char* name) { return agent.Get(name).As<Napi::String>().Utf8Value(); };
  AgentOptions joining;
  joining.path = text("path");
  joining.secret = text("secret");
  joining.world = text("world");
  joining.attempt = agent.Get("attempt").As<Napi::Number>().Uint32Value();
  joining.rank = options.rank;
  joining.size = options.size;
  joining.timeoutNs = nanoseconds(given.Get("connectSeconds"));
  return std::make_unique<AgentClient>(std::move(joining));
}

// open(options, completion): this rank, connected once the completion has arrived.
Napi::Value open(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto given = info[0].As<Napi::Object>();
    TransportPtr transport(pointer<const MosaicTransport>(given.Get("transport")));
    EngineOptions options;
    options.rank = given.Get("rank").As<Napi::Number>().Uint32Value();
    options.size = given.Get("size").As<Napi::Number>().Uint32Value();
    options.timeoutNs = nanoseconds(given.Get("timeoutSeconds"));
    options.connectNs = nanoseconds(given.Get("connectSeconds"));
    options.drainNs = nanoseconds(given.Get("drainSeconds"));
    options.instructionSet = given.Get("instructionSet").As<Napi::String>().Utf8Value();
    ComputeStream compute;
    compute.handle = pointer<void>(given.Get("stream"));
    compute.port = pointer<MosaicDevicePort>(given.Get("port"));
    if (!compute.port) compute.stream = pointer<MosaicStream>(given.Get("stream"));
    Addon& addon = addonOf(info);
    const auto engine =
        Engine::open(std::move(transport), compute, controlOf(given, options), options, addon.completion(info[1]));
    addon.engines.push_back(engine);
    addon.completions->expect();
    auto* reference = new std::weak_ptr<Engine>(engine);
    return EngineHandle::New(info.Env(), reference,
                             [](Napi::Env, std::weak_ptr<Engine>* finalized) { delete finalized; });
  });
}

// hosts(engine): the number of each rank's host, by rank, once the engine has connected.
Napi::Value hosts(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto engine = engineOf(info);
    const auto numbers = Napi::Array::New(info.Env());
    for (const Member& member : engine->members()) numbers.Set(numbers.Length(), member.host);
    return numbers;
  });
}

// close(engine, completion): finishes what was posted, then closes; `release` may be called once the completion has
// arrived, with a failure or without.
void close(const Napi::CallbackInfo& info) {
  rethrowAsJsError(info.Env(), [&] {
    const auto engine = engineOf(info);
    engine->close(addonOf(info).completion(info[1]));
    addonOf(info).completions->expect();
  });
}

// release(engine): it has closed, or has never connected.
void release(const Napi::CallbackInfo& info) { addonOf(info).engines.remove(findEngine(info)); }

// abortAll(): before the process ends, so that no stream waits for an operation, and no thread uses a library.
void abortAll(const Napi::CallbackInfo& info) { addonOf(info).abortAll(); }

}  // namespace

void exportRanks(Napi::Env env, Napi::Object exports) {
  exports.Set("openWorld", Napi::Function::New(env, openWorld));
  exports.Set("open", Napi::Function::New(env, open));
  exports.Set("hosts", Napi::Function::New(env, hosts));
  exports.Set("close", Napi::Function::New(env, close));
  exports.Set("release", Napi::Function::New(env, release));
  exports.Set("abortAll", Napi::Function::New(env, abortAll));
}

}  // namespace mosaic
