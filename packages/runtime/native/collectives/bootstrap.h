// The part of the control plane that transports use.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "collectives/engine.h"

namespace mosaic {

/// Gives a transport access to the control plane while it connects.
struct Bootstrap : MosaicBootstrap {
  Bootstrap(ControlPlane& plane, const EngineOptions& options, std::function<bool()> isInterrupted)
      : MosaicBootstrap{}, control(plane), isInterruptedNow(std::move(isInterrupted)) {
    rank = options.rank;
    size = options.size;
    timeout = options.connectTimeoutNs;
    interrupted = [](MosaicBootstrap* self) -> int { return static_cast<Bootstrap*>(self)->isInterruptedNow(); };
    for (const Member& member : plane.members()) {
      rankHosts.push_back(member.host);
      rankPids.push_back(member.pid);
    }
    hosts = rankHosts.data();
    pids = rankPids.data();
    matches = signaturesMatch;
    MosaicBootstrap::put = [](MosaicBootstrap* self, const char* key, const void* value, uint64_t bytes,
                              MosaicFailure* failure) {
      return captureFailure(failure, "connect", [&] {
        static_cast<Bootstrap*>(self)->control.put(key, std::string(static_cast<const char*>(value), bytes));
      });
    };
    MosaicBootstrap::get = [](MosaicBootstrap* self, const char* key, void* value, uint64_t capacity, uint64_t* bytes,
                              MosaicFailure* failure) {
      return captureFailure(failure, "connect", [&] {
        const std::string text = static_cast<Bootstrap*>(self)->control.get(key);
        std::copy_n(text.data(), std::min<uint64_t>(text.size(), capacity), static_cast<char*>(value));
        *bytes = text.size();
      });
    };
  }
  ControlPlane& control;
  std::function<bool()> isInterruptedNow;
  std::vector<uint32_t> rankHosts;
  std::vector<int32_t> rankPids;
};

}  // namespace mosaic
