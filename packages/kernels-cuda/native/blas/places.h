// Where libraries of NVIDIA's may be that no system knows of.
#pragma once

#include <string>
#include <vector>

namespace mosaic::cuda {

/// Paths of `file`, a library of cuBLAS's: in the CUDA Toolkit, and in Python's packages, of the environment in use
/// first. Those of Python exist.
std::vector<std::string> placesOf(const std::string& file);

}  // namespace mosaic::cuda
