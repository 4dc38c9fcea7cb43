#include <stdlib.h>

#include <array>
#include <utility>

#include "mosaic/dynamic_library.h"
#include "ucx/api.h"

namespace mosaic::ucx {

namespace {

constexpr const char* kInstallHint =
    "install UCX 1.13 or newer: apt-get install libucx0, dnf install ucx, or pip install libucx-cu12 (or -cu13); or "
    "set MOSAIC_UCX_LIBRARY to the library's path";

/// Settings that UCX reads only from the environment, once, while it is loaded. By default UCX would handle signals
/// that Node uses (V8 bounds WebAssembly memory by SIGSEGV), log to the standard output, and warn of variables of other
/// tools. To observe unmapped memory, it would overwrite sbrk and munmap of the C library while other threads execute
/// them; then about 1 % of processes crashed in malloc.
constexpr std::array<std::pair<const char*, const char*>, 7> kGlobalSettings{{
    {"UCX_ERROR_SIGNALS", ""},
    {"UCX_HANDLE_ERRORS", "none"},
    {"UCX_DEBUG_SIGNO", "0"},
    {"UCX_MEM_EVENTS", "n"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    {"UCX_LOG_LEVEL", "fatal"},
    {"UCX_LOG_FILE", "stderr"},
}};

/// Sets the variables that the user has not set, until it is destroyed, so that child processes do not inherit them
/// later.
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

/// Fills in `library`. Returns why the library cannot be used, or an empty text.
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

/// Returns the first usable library.
Library find(const std::vector<std::string>& candidates) {
  const GlobalSettings settings;
  LibraryErrors errors;
  // UCX has threads and replaces functions of the C library, so it is never unloaded.
  const int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  if (auto library = findLibrary<Library>(candidates, flags, resolveSymbols, errors)) return *std::move(library);
  throw Failure(MOSAIC_FAILURE_DEVICE,
                "ucx: no usable UCX library: " +
                    (errors.unsupportedReasons.empty() ? errors.loadErrors : errors.unsupportedReasons) + "; " +
                    kInstallHint);
}

ProcessLibrary<Library> processLibrary("ucx", "UCX");

}  // namespace

const Library& load(const std::vector<std::string>& candidates) {
  return processLibrary.load([&] { return find(candidates); });
}

const Library& library() { return processLibrary.get(); }

std::string Library::version() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

}  // namespace mosaic::ucx
