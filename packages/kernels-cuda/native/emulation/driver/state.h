// What the entry points of the stand-in driver share.
#pragma once

#include <atomic>
#include <string>

#include "driver/api.h"
#include "stream.h"

namespace emulated {

/// How many there are of what must be given back.
struct Counts {
  std::atomic<long> contexts{0}, streams{0}, events{0}, modules{0}, pools{0}, allocations{0}, pinned{0};
};
Counts& counts();

/// Whether cuInit was called.
bool& initialised();

/// Whether the calling thread has set a context, as NVIDIA's driver requires of every thread.
bool& hasContext();

/// The first reason for which a call is to be refused: a thread without a context, a callback of the driver's (which
/// must not call it), a context that has failed. Else success.
CUresult ready();

/// Fails the context as something did on the device, and reports so on stderr.
void fault(CUresult code, const std::string& what);

/// Poison of fresh memory and of memory that was given back: NaN in every floating-point type.
constexpr int kPoison = 0xff;

template <class T>
T* pointer(CUdeviceptr address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

}  // namespace emulated
