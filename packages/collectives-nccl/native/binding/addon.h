// What belongs to one JavaScript environment.
#pragma once

#include <napi.h>

#include <list>
#include <map>
#include <memory>

#include "engine/engine.h"
#include "mosaic/completion_queue.h"

namespace mosaic::nccl {

/// Changes whenever the two sides would misunderstand each other; its counterpart is in src/addon.ts.
constexpr int32_t kProtocol = 1;

struct Addon {
  /// Completions tell JavaScript, by number, that what it waits for is done, or why it failed.
  std::shared_ptr<CompletionQueue> completions;
  /// Those that have not left: an operation under way must not end because nobody holds its group any more.
  std::list<std::shared_ptr<Engine>> engines;
  std::list<std::unique_ptr<Hub>> hubs;
  std::map<double, std::shared_ptr<std::vector<TraceRecord>>> traces;

  /// Completes `number`, once; `completions->expect()` must be called when that is certain.
  Told completion(Napi::Value number) const;
  void abortAll();
  /// At the end of the environment: no thread of ours outlives it.
  void end();
};

inline Addon& addonOf(const Napi::CallbackInfo& info) { return *info.Env().GetInstanceData<Addon>(); }

/// Runs `body`; native failures become JavaScript errors whose `code` says what kind, as in `errorFromFailure`.
template <typename Body>
auto guarded(Napi::Env env, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const Failure& failure) {
    Napi::Error error = Napi::Error::New(env, failure.what());
    error.Set("code", std::to_string(failure.code()));
    throw error;
  } catch (const Napi::Error&) {
    throw;
  } catch (const std::exception& exception) {
    throw Napi::Error::New(env, exception.what());
  }
}

using Handle = Napi::External<std::weak_ptr<Engine>>;
/// Throws Failure once it has left.
std::shared_ptr<Engine> engineOf(const Napi::CallbackInfo& info);

/// Finding NCCL, and joining the others.
void exportJoining(Napi::Env env, Napi::Object exports);
/// What a rank does among the others.
void exportCalls(Napi::Env env, Napi::Object exports);

}  // namespace mosaic::nccl
