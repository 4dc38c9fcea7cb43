// Search paths of NVIDIA libraries that the dynamic linker does not search.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace mosaic::cuda {

namespace fs = std::filesystem;

inline std::string environmentVariable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Splits a PATH-like list into directories.
inline std::vector<fs::path> splitPath(const std::string& list) {
  std::vector<fs::path> directories;
  std::istringstream stream(list);
  for (std::string directory; std::getline(stream, directory, ':');) {
    if (!directory.empty()) directories.emplace_back(directory);
  }
  return directories;
}

/// Returns the roots of Python environments: activated ones, and those whose `bin/python3` is on the PATH or linked
/// there.
inline std::vector<fs::path> pythonRoots() {
  std::vector<fs::path> roots =
      splitPath(environmentVariable("VIRTUAL_ENV") + ":" + environmentVariable("CONDA_PREFIX"));
  std::error_code error;
  for (const fs::path& directory : splitPath(environmentVariable("PATH"))) {
    fs::path python = directory / "python3";
    if (!fs::exists(python, error)) continue;
    roots.push_back(directory.parent_path());
    while (fs::is_symlink(python, error)) {
      python = (python.parent_path() / fs::read_symlink(python, error)).lexically_normal();
      roots.push_back(python.parent_path().parent_path());
    }
  }
  if (const std::string home = environmentVariable("HOME"); !home.empty()) roots.emplace_back(home + "/.local");
  roots.insert(roots.end(), {"/usr/local", "/usr"});
  return roots;
}

/// Returns the directories that Python imports from.
inline std::vector<fs::path> sitePackages() {
  std::vector<fs::path> directories = splitPath(environmentVariable("PYTHONPATH"));
  std::error_code error;
  for (const fs::path& root : pythonRoots()) {
    for (const char* lib : {"lib", "lib64"}) {
      for (fs::directory_iterator entry(root / lib, error), end; !error && entry != end; entry.increment(error)) {
        if (!entry->path().filename().string().starts_with("python3")) continue;
        directories.push_back(entry->path() / "site-packages");
        directories.push_back(entry->path() / "dist-packages");
      }
    }
  }
  return directories;
}

/// Returns candidate paths of `file`, a cuBLAS library: in the CUDA Toolkit, then in Python packages, those of the
/// active environment first. Paths in Python packages exist.
inline std::vector<std::string> librarySearchPaths(const std::string& file) {
  std::vector<std::string> paths{"/usr/local/cuda/lib64/" + file};
  std::error_code error;
  for (const fs::path& directory : sitePackages()) {
    // Separate packages, or, since CUDA 13, a single one.
    for (const char* package : {"cu13", "cublas"}) {
      const fs::path path = directory / "nvidia" / package / "lib" / file;
      if (fs::exists(path, error)) paths.push_back(path.string());
    }
  }
  return paths;
}

}  // namespace mosaic::cuda
