// Libraries that are loaded at run time, so that the packages build, install and load on machines without them.
#pragma once

#include <dlfcn.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mosaic/failure.h"

namespace mosaic {

/// Returns the first line of a message of dlerror.
inline std::string firstLine(const char* text) {
  const std::string message = text ? text : "unknown reason";
  return message.substr(0, message.find('\n'));
}

/// Why no library can be used: errors of libraries that cannot be loaded, and reasons for loaded ones that lack a
/// symbol or have an unsupported version.
struct LibraryErrors {
  std::string loadErrors, unsupportedReasons;

  static void append(std::string& reasons, const std::string& reason) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
  }
};

/// Loads the first of `candidates` for which `resolveSymbols(handle, library)` returns "". Otherwise that returns the
/// reason why the library cannot be used. A Library has the members `path` and `functions.getVersion`.
template <typename Library, typename ResolveSymbols>
std::optional<Library> findLibrary(const std::vector<std::string>& candidates, int flags,
                                   ResolveSymbols resolveSymbols, LibraryErrors& errors) {
  for (const std::string& candidate : candidates) {
    void* const handle = dlopen(candidate.c_str(), flags);
    if (!handle) {
      LibraryErrors::append(errors.loadErrors, firstLine(dlerror()));
      continue;
    }
    Library library;
    library.path = candidate;
    const std::string reason = resolveSymbols(handle, library);
    if (!reason.empty()) {
      LibraryErrors::append(errors.unsupportedReasons, reason);
      dlclose(handle);
      continue;
    }
    // The full path, if the library was found in the system's search path.
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(library.functions.getVersion), &info) && info.dli_fname)
      library.path = info.dli_fname;
    return library;
  }
  return std::nullopt;
}

/// A library that is loaded once per process and never unloaded.
template <typename Library>
class ProcessLibrary {
 public:
  /// Errors contain both names, as in "ucx: expected a loaded UCX library, received none".
  ProcessLibrary(const char* prefix, const char* name) : prefix_(prefix), name_(name) {}

  /// Returns the loaded library. The first call loads it by `find()`.
  template <typename Find>
  const Library& load(Find find) {
    const std::lock_guard lock(mutex_);
    if (!library_) library_ = new Library(find());
    return *library_;
  }
  /// Throws Failure if the library is not loaded.
  const Library& get() {
    const std::lock_guard lock(mutex_);
    if (library_) return *library_;
    throw Failure(MOSAIC_FAILURE_DEVICE,
                  std::string(prefix_) + ": expected a loaded " + name_ + " library, received none");
  }

 private:
  const char *prefix_, *name_;
  std::mutex mutex_;
  const Library* library_ = nullptr;  // under mutex_
};

}  // namespace mosaic
