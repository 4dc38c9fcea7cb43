// How the elements of a tensor are stored. Arithmetic is float32 throughout.
#pragma once

#include <cstdint>

namespace mosaic {

enum class DType : uint8_t { Float32, BFloat16, Float16 };

constexpr int64_t dtypeBytes(DType dtype) { return dtype == DType::Float32 ? 4 : 2; }

constexpr const char* dtypeName(DType dtype) {
  return dtype == DType::Float32 ? "float32" : dtype == DType::BFloat16 ? "bfloat16" : "float16";
}

}  // namespace mosaic
