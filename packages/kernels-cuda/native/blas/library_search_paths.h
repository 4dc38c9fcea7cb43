// Search paths of NVIDIA libraries that the dynamic linker does not search.
#pragma once

#include <string>
#include <vector>

namespace mosaic::cuda {

/// Candidate paths of `file`, a cuBLAS library: in the CUDA Toolkit, then in Python packages, those of the active
/// environment first. Paths in Python packages exist.
std::vector<std::string> librarySearchPaths(const std::string& file);

}  // namespace mosaic::cuda
