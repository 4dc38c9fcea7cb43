#include "nccl/api.h"

#include "mosaic/dynamic_library.h"

namespace mosaic::nccl {

namespace {

constexpr const char* kInstallHint =
    "install NCCL 2.18 or newer: apt-get install libnccl2, or pip install nvidia-nccl-cu12 (or -cu13); or set "
    "MOSAIC_NCCL_LIBRARY to the library's path";

/// Fills in `library`. Returns why the library cannot be used, or an empty text.
std::string resolveSymbols(void* handle, Library& library) {
  const char* missingSymbol = nullptr;
  Functions& functions = library.functions;
#define MOSAIC_NCCL_FIND(type, name, symbol, parameters)                         \
  functions.name = reinterpret_cast<type(*) parameters>(dlsym(handle, #symbol)); \
  if (!functions.name && !missingSymbol) missingSymbol = #symbol;
  MOSAIC_NCCL(MOSAIC_NCCL_FIND)
#undef MOSAIC_NCCL_FIND
  if (functions.getVersion) {
    functions.getVersion(&library.version);
    if (library.version < kMinVersion) {
      return library.path + " version " + versionText(library.version) + ", which is too old";
    }
  }
  return missingSymbol ? library.path + " without the symbol " + missingSymbol : "";
}

/// Returns the first usable library.
Library find(const std::vector<std::string>& candidates) {
  LibraryErrors errors;
  const int flags = RTLD_NOW | RTLD_LOCAL;
  if (auto library = findLibrary<Library>(candidates, flags, resolveSymbols, errors)) return *std::move(library);
  const std::string& reasons = errors.unsupportedReasons;
  throw Failure(MOSAIC_FAILURE_DEVICE,
                "nccl: expected NCCL, received " + (reasons.empty() ? "none (" + errors.loadErrors + ")" : reasons) +
                    "; " + kInstallHint);
}

ProcessLibrary<Library> processLibrary("nccl", "NCCL");

}  // namespace

const Library& load(const std::vector<std::string>& candidates) {
  return processLibrary.load([&] { return find(candidates); });
}

const Library& library() { return processLibrary.get(); }

std::string versionText(int version) {
  // Up to 2.8, version numbers had one digit less.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

}  // namespace mosaic::nccl
