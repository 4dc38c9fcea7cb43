#include "binding/addon.h"
#include "nccl/library.h"

namespace mosaic::nccl {

namespace {

// load(candidates): [version, path] of NCCL.
Napi::Value loadNccl(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const auto given = info[0].As<Napi::Array>();
    std::vector<std::string> candidates;
    for (uint32_t i = 0; i < given.Length(); i++) candidates.push_back(given.Get(i).As<Napi::String>());
    const Library& found = load(candidates);
    const auto pair = Napi::Array::New(info.Env(), 2);
    pair.Set(uint32_t{0}, versionText(found.version));
    pair.Set(uint32_t{1}, found.path);
    return pair;
  });
}

// uniqueId(): the 128 bytes by which ranks find one another in NCCL.
Napi::Value uniqueId(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    ncclUniqueId id{};
    check(library().functions.getUniqueId(&id), Communicator(), "nccl: making an id");
    return Napi::Buffer<char>::Copy(info.Env(), id.internal, sizeof id.internal);
  });
}

// openHub(size, host, seconds): [port, token] of where the ranks will meet.
Napi::Value openHub(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    Addon& addon = addonOf(info);
    addon.hubs.remove_if([](const auto& hub) { return hub->over(); });
    const std::string host = info[1].As<Napi::String>();
    const auto& hub = addon.hubs.emplace_back(std::make_unique<Hub>(host, info[0].As<Napi::Number>().Uint32Value(),
                                                                    info[2].As<Napi::Number>().DoubleValue()));
    const auto pair = Napi::Array::New(info.Env(), 2);
    pair.Set(uint32_t{0}, hub->port());
    pair.Set(uint32_t{1}, hub->token());
    return pair;
  });
}

template <typename T>
T* pointer(Napi::Value address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address.As<Napi::Number>().Int64Value()));
}

EngineOptions readOptions(const Napi::Object& given) {
  const auto number = [&](const char* name) { return given.Get(name).As<Napi::Number>(); };
  const auto text = [&](const char* name) { return given.Get(name).As<Napi::String>().Utf8Value(); };
  EngineOptions options;
  options.rank = number("rank").Uint32Value();
  options.size = number("size").Uint32Value();
  options.host = text("host");
  options.port = number("port").Int32Value();
  options.token = text("token");
  const auto id = given.Get("id").As<Napi::Buffer<char>>();
  if (id.Length() != sizeof options.id.internal) throw std::runtime_error("an NCCL id of another length");
  std::memcpy(options.id.internal, id.Data(), sizeof options.id.internal);
  options.settings = {number("minCtas").Int32Value(), number("maxCtas").Int32Value(), text("network")};
  options.warmUp = given.Get("warmUp").ToBoolean();
  options.connectSeconds = number("connectSeconds").DoubleValue();
  options.timeoutSeconds = number("timeoutSeconds").DoubleValue();
  options.drainSeconds = number("drainSeconds").DoubleValue();
  options.compute = pointer<CUstream_st>(given.Get("stream"));
  options.device = pointer<MosaicDevicePort>(given.Get("device"));
  return options;
}

// connect(options, completion): this rank, once the completion has arrived.
Napi::Value connect(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const EngineOptions options = readOptions(info[0].As<Napi::Object>());
    if (options.device->abi != MOSAIC_DEVICE_PORT_ABI) {
      throw std::runtime_error("the device's port has another version; use the same version of all @mosaic packages");
    }
    driver();  // throws here, not on the thread
    Addon& addon = addonOf(info);
    const auto engine = std::make_shared<Engine>(options, addon.completion(info[1]));
    addon.engines.push_back(engine);
    addon.completions->expect();
    auto* held = new std::weak_ptr<Engine>(engine);
    return Handle::New(info.Env(), held, [](Napi::Env, std::weak_ptr<Engine>* given) { delete given; });
  });
}

// close(member, completion): finishes what was posted, then leaves. `forget` may be called after the completion.
void close(const Napi::CallbackInfo& info) {
  guarded(info.Env(), [&] {
    const auto engine = engineOf(info);
    const Told told = addonOf(info).completion(info[1]);
    engine->close([told] { told(nullptr); });
    addonOf(info).completions->expect();
  });
}

// forget(member): it has left, or has never come in.
void forget(const Napi::CallbackInfo& info) {
  const auto engine = info[0].As<Handle>().Data()->lock();
  addonOf(info).engines.remove(engine);
}

void abortAll(const Napi::CallbackInfo& info) { addonOf(info).abortAll(); }

}  // namespace

void exportJoining(Napi::Env env, Napi::Object exports) {
  exports.Set("load", Napi::Function::New(env, loadNccl));
  exports.Set("uniqueId", Napi::Function::New(env, uniqueId));
  exports.Set("openHub", Napi::Function::New(env, openHub));
  exports.Set("connect", Napi::Function::New(env, connect));
  exports.Set("close", Napi::Function::New(env, close));
  exports.Set("forget", Napi::Function::New(env, forget));
  exports.Set("abortAll", Napi::Function::New(env, abortAll));
}

}  // namespace mosaic::nccl
