#include <dlfcn.h>
#include <stdlib.h>

#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "mosaic/failure.h"
#include "ucx/api.h"

namespace mosaic::ucx {

namespace {

constexpr const char* kInstallHint =
    "install UCX 1.13 or newer: apt-get install libucx0, dnf install ucx, or pip install libucx-cu12 (or -cu13); or "
    "set MOSAIC_UCX_LIBRARY to the library's path";

/// What UCX reads once, while it is loaded, and only from the environment. It would handle signals that are Node's
/// (SIGSEGV is how V8 bounds WebAssembly), log to the standard output, and warn of variables of other tools. To observe
/// memory that is unmapped, it would overwrite sbrk and munmap of the C library while other threads run in them: about
/// one process of a hundred then died in malloc.
constexpr std::array<std::pair<const char*, const char*>, 7> kGlobalSettings{{
    {"UCX_ERROR_SIGNALS", ""},
    {"UCX_HANDLE_ERRORS", "none"},
    {"UCX_DEBUG_SIGNO", "0"},
    {"UCX_MEM_EVENTS", "n"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    {"UCX_LOG_LEVEL", "fatal"},
    {"UCX_LOG_FILE", "stderr"},
}};

/// Sets those that the user has not set, while it lives: processes that are started later inherit nothing of it.
class GlobalSettings {
 public:
  GlobalSettings() {
    for (const auto& [name, value] : kGlobalSettings) {
      if (getenv(name)) continue;
      setenv(name, value, 0);
      variableNames_.push_back(name);
    }
  }
  ~GlobalSettings() {
    for (const char* name : variableNames_) unsetenv(name);
  }
  GlobalSettings(const GlobalSettings&) = delete;
  GlobalSettings& operator=(const GlobalSettings&) = delete;

 private:
  std::vector<const char*> variableNames_;
};

std::string firstLine(const char* text) {
  const std::string message = text ? text : "unknown reason";
  return message.substr(0, message.find('\n'));
}

/// Fills in `library`; else returns why that library cannot be used.
std::string resolveSymbols(void* handle, Library& library) {
  const char* missingSymbol = nullptr;
  Functions& functions = library.functions;
#define MOSAIC_UCX_FIND(type, name, symbol, parameters)                          \
  functions.name = reinterpret_cast<type(*) parameters>(dlsym(handle, #symbol)); \
  if (!functions.name && !missingSymbol) missingSymbol = #symbol;
  MOSAIC_UCX(MOSAIC_UCX_FIND)
#undef MOSAIC_UCX_FIND
  if (functions.getVersion) {
    functions.getVersion(&library.major, &library.minor, &library.release);
    if (std::pair(library.major, library.minor) < std::pair(kMajor, kMinor)) {
      return library.path + " version " + library.version() + ", which is too old";
    }
  }
  return missingSymbol ? library.path + " without the symbol " + missingSymbol : "";
}

/// The first that can be used.
Library findLibrary(const std::vector<std::string>& candidates) {
  const GlobalSettings settings;
  std::string loadErrors, unsupportedReasons;
  const auto appendReason = [](std::string& reasons, const std::string& reason) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
  };
  for (const std::string& candidate : candidates) {
    // UCX has threads, and replaces functions of the C library: it is never unloaded.
    void* const handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
      appendReason(loadErrors, firstLine(dlerror()));
      continue;
    }
    Library library;
    library.path = candidate;
    const std::string reason = resolveSymbols(handle, library);
    if (reason.empty()) return library;
    appendReason(unsupportedReasons, reason);
  }
  throw Failure(MOSAIC_FAILURE_DEVICE,
                "ucx: no usable UCX library: " + (unsupportedReasons.empty() ? loadErrors : unsupportedReasons) + "; " +
                    kInstallHint);
}

std::mutex mutex;
const Library* loadedLibrary = nullptr;

}  // namespace

const Library& load(const std::vector<std::string>& candidates) {
  const std::lock_guard lock(mutex);
  if (loadedLibrary) return *loadedLibrary;
  Library library = findLibrary(candidates);
  // Where it was found, if the system's search found it.
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(library.functions.getVersion), &info) && info.dli_fname)
    library.path = info.dli_fname;
  return *(loadedLibrary = new Library(std::move(library)));
}

const Library& library() {
  const std::lock_guard lock(mutex);
  if (!loadedLibrary) throw Failure(MOSAIC_FAILURE_DEVICE, "ucx: expected a loaded UCX library, received none");
  return *loadedLibrary;
}

std::string Library::version() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

}  // namespace mosaic::ucx
