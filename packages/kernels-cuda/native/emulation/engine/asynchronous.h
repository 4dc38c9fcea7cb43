// What a block has under way beside its threads, on a GPU that can: TMA's copies, warpgroups' products.
#pragma once

namespace emulated {

struct Asynchronous {
  virtual ~Asynchronous() = default;
  /// Called when no thread can run: lets a copy land, false if there is none.
  virtual bool land() = 0;
  /// The current thread has come to its end; fails if something of its doing is unfinished.
  virtual void leave() = 0;
  /// All have; reports what is unfinished, "" if nothing is.
  virtual const char* unfinished() = 0;
};

}  // namespace emulated
