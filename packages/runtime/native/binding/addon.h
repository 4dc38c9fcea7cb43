// What belongs to one JavaScript environment: the engines of its ranks, and the completions that are pending.
#pragma once

#include <napi.h>

#include <list>
#include <map>
#include <memory>

#include "collectives/engine.h"
#include "mosaic/completion_queue.h"
#include "mosaic/rethrow_as_js_error.h"

namespace mosaic {

/// Changes whenever the two sides would misunderstand each other; its counterpart is in src/collectives/addon.ts.
constexpr int32_t kBindingVersion = 4;

struct Addon {
  std::shared_ptr<CompletionQueue> completions;
  /// Those that have not closed: an operation under way must not end because its group is not referenced any more.
  std::list<std::shared_ptr<Engine>> engines;
  std::map<double, std::shared_ptr<std::vector<TraceRecord>>> traces;  // by completion

  /// Completes `number`, once; `completions->expect()` must be called when that is certain.
  CompletionCallback completion(Napi::Value number) const;
  /// Before the process ends: fails what is under way, and waits for the communication threads, for 2 s at most.
  void abortAll();
  /// At the end of the environment: no thread of the runtime outlives it.
  void shutDown();
};

inline Addon& getAddon(const Napi::CallbackInfo& info) { return *info.Env().GetInstanceData<Addon>(); }

using EngineHandle = Napi::External<std::weak_ptr<Engine>>;
inline std::shared_ptr<Engine> findEngine(const Napi::CallbackInfo& info) {
  return info[0].As<EngineHandle>().Data()->lock();
}
/// Throws Failure once it has closed.
std::shared_ptr<Engine> getEngine(const Napi::CallbackInfo& info);

/// Opening and closing ranks.
void exportRanks(Napi::Env env, Napi::Object exports);
/// Operations of a rank.
void exportCalls(Napi::Env env, Napi::Object exports);

}  // namespace mosaic
