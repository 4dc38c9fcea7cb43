// Finds NCCL at run time, so that everything builds, installs and loads where there is none.
#pragma once

#include <string>
#include <vector>

#include "nccl/api.h"

namespace mosaic::nccl {

struct Library {
  Functions functions;
  std::string path;
  int version = 0;
};

/// Loads the first of `candidates` that can be used, once for the process; later calls need name none.
/// Throws Failure that reports what is missing, or too old, and what to do about it.
const Library& load(const std::vector<std::string>& candidates);

/// What was loaded. Throws before that.
const Library& library();

/// "2.18.5" for 21805.
std::string versionText(int version);

}  // namespace mosaic::nccl
