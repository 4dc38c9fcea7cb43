#include "binding/addon.h"
#include "control/agent_client.h"
#include "control/in_process.h"

namespace mosaic {

namespace {

using WorldHandle = Napi::External<std::shared_ptr<InProcessWorld>>;

int64_t toNanoseconds(Napi::Value seconds) {
  return static_cast<int64_t>(seconds.As<Napi::Number>().DoubleValue() * 1e9);
}

template <typename T>
T* toPointer(Napi::Value address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address.As<Napi::Number>().Int64Value()));
}

// openWorld(size, seconds, hosts): returns the control plane that ranks of this process share. They wait up to
// `seconds` for one another. `hosts` has each rank's host number, or is empty.
Napi::Value openWorld(const Napi::CallbackInfo& info) {
  const auto hostArray = info[2].As<Napi::Uint32Array>();
  const std::vector<uint32_t> hosts(hostArray.Data(), hostArray.Data() + hostArray.ElementLength());
  const uint32_t size = info[0].As<Napi::Number>().Uint32Value();
  const auto world = std::make_shared<InProcessWorld>(size, toNanoseconds(info[1]), hosts);
  auto* reference = new std::shared_ptr<InProcessWorld>(world);
  return WorldHandle::New(info.Env(), reference,
                          [](Napi::Env, std::shared_ptr<InProcessWorld>* pointee) { delete pointee; });
}

std::unique_ptr<ControlPlane> makeControlPlane(const Napi::Object& jsOptions, const EngineOptions& options) {
  const Napi::Value world = jsOptions.Get("world");
  if (world.IsExternal()) return std::make_unique<InProcessControl>(*world.As<WorldHandle>().Data(), options.rank);
  const auto agent = jsOptions.Get("agent").As<Napi::Object>();
  const auto getString = [&](const char* name) { return agent.Get(name).As<Napi::String>().Utf8Value(); };
  AgentOptions agentOptions;
  agentOptions.path = getString("path");
  agentOptions.secret = getString("secret");
  agentOptions.world = getString("world");
  agentOptions.attempt = agent.Get("attempt").As<Napi::Number>().Uint32Value();
  agentOptions.rank = options.rank;
  agentOptions.size = options.size;
  agentOptions.timeoutNs = toNanoseconds(jsOptions.Get("connectSeconds"));
  return std::make_unique<AgentClient>(std::move(agentOptions));
}

// open(options, completion): returns the engine of this rank, which is connected once the completion has arrived.
Napi::Value open(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto jsOptions = info[0].As<Napi::Object>();
    TransportPtr transport(toPointer<const MosaicTransport>(jsOptions.Get("transport")));
    EngineOptions options;
    options.rank = jsOptions.Get("rank").As<Napi::Number>().Uint32Value();
    options.size = jsOptions.Get("size").As<Napi::Number>().Uint32Value();
    options.timeoutNs = toNanoseconds(jsOptions.Get("timeoutSeconds"));
    options.connectTimeoutNs = toNanoseconds(jsOptions.Get("connectSeconds"));
    options.drainTimeoutNs = toNanoseconds(jsOptions.Get("drainSeconds"));
    options.instructionSet = jsOptions.Get("instructionSet").As<Napi::String>().Utf8Value();
    ComputeStream compute;
    compute.handle = toPointer<void>(jsOptions.Get("stream"));
    compute.port = toPointer<MosaicDevicePort>(jsOptions.Get("port"));
    if (!compute.port) compute.stream = toPointer<MosaicStream>(jsOptions.Get("stream"));
    Addon& addon = getAddon(info);
    const auto engine = Engine::open(std::move(transport), compute, makeControlPlane(jsOptions, options), options,
                                     addon.completion(info[1]));
    addon.engines.push_back(engine);
    addon.completions->expect();
    auto* reference = new std::weak_ptr<Engine>(engine);
    return EngineHandle::New(info.Env(), reference, [](Napi::Env, std::weak_ptr<Engine>* pointee) { delete pointee; });
  });
}

// hosts(engine): returns each rank's host number, once the engine has connected.
Napi::Value hosts(const Napi::CallbackInfo& info) {
  return rethrowAsJsError(info.Env(), [&]() -> Napi::Value {
    const auto engine = getEngine(info);
    const auto hostNumbers = Napi::Array::New(info.Env());
    for (const Member& member : engine->members()) hostNumbers.Set(hostNumbers.Length(), member.host);
    return hostNumbers;
  });
}

// close(engine, completion): finishes the posted operations, then closes. `release` may be called once the completion
// has arrived, with or without a failure.
void close(const Napi::CallbackInfo& info) {
  rethrowAsJsError(info.Env(), [&] {
    const auto engine = getEngine(info);
    engine->close(getAddon(info).completion(info[1]));
    getAddon(info).completions->expect();
  });
}

// release(engine): releases an engine that has closed or was never connected.
void release(const Napi::CallbackInfo& info) { getAddon(info).engines.remove(findEngine(info)); }

// abortAll(): called before the process exits, so that no stream waits for an operation and no thread uses a library.
void abortAll(const Napi::CallbackInfo& info) { getAddon(info).abortAll(); }

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
