// A thread of a block, with its own stack and manual context switches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/emulator.h"

// CUDA's keywords and vector types for a host compiler.

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct __align__(8) float2 {
  float x, y;
};
struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#if !defined(__x86_64__) || defined(EMULATED_UCONTEXT)
#define EMULATED_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emulated {

#if defined(EMULATED_UCONTEXT)

using Stack = ucontext_t;
inline void switchStacks(Stack* save, Stack* load) { swapcontext(save, load); }
inline void makeStack(Stack* stack, char* memory, size_t bytes, void (*entry)()) {
  getcontext(stack);
  stack->uc_stack.ss_sp = memory;
  stack->uc_stack.ss_size = bytes;
  stack->uc_link = nullptr;
  makecontext(stack, entry, 0);
}

#else

using Stack = void*;  // the saved stack pointer

/// Saves the callee-saved registers and resumes where `load` was saved. Takes a tenth of the time of swapcontext.
__attribute__((naked, noinline)) inline void switchStacks(Stack* /*save*/, Stack* /*load*/) {
  // Uses a jump, because a `ret` to another stack would always be mispredicted.
  asm volatile(
      "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
      "mov %rsp,(%rdi)\n mov (%rsi),%rsp\n"
      "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n pop %rcx\n jmp *%rcx");
}
inline void makeStack(Stack* stack, char* memory, size_t bytes, void (*entry)()) {
  constexpr int kSavedRegisters = 6, kSlots = 8;  // with the address of `entry` on top, 16-byte aligned
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(memory) + bytes) & ~uintptr_t{63}) - kSlots;
  for (int i = 0; i < kSlots; i++) top[i] = nullptr;
  top[kSavedRegisters] = reinterpret_cast<void*>(entry);
  *stack = top;
}

#endif

/// An odd number of cache lines, because stacks at power-of-two distances would share cache sets.
constexpr size_t kStackBytes = 64 * 1024 + 17 * 64;

/// An asynchronous copy to 16 bytes of shared memory, of which the first `bytes` are copied and the rest is
/// zero-filled.
struct Copy {
  uint32_t to;
  const void* from;
  int bytes;
};

/// Range of the words of shared memory that a thread stored, from the first to the last.
struct StoredRange {
  uint32_t first = UINT32_MAX, end = 0;

  void include(uint32_t from, uint32_t to) {
    first = from < first ? from : first;
    end = to > end ? to : end;
  }
};

struct Fiber {
  Stack stack;
  std::unique_ptr<char[]> memory;
  dim3 index;
  int thread = 0, warp = 0, lane = 0;
  const char* state = "ready";  // printed in deadlock reports
  CallSite site;
  std::vector<Copy> uncommittedCopies;   // cp.async, not committed
  std::deque<std::vector<Copy>> groups;  // committed, oldest first
  StoredRange unfencedRange;             // since its last fence.proxy.async
};

}  // namespace emulated
