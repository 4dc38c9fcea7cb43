// Enumerations among the arguments of kernels, as packages/core/src/kernels/schema.ts states.
// Written by scripts/kernel-headers.mjs: edit the schema.
#pragma once

#include <cstdint>

namespace mosaic {

enum class BinaryOp : int32_t { Add, Sub, Mul, Div, Max };
enum class UnaryOp : int32_t { Neg, Exp, Log, Sqrt, Rsqrt, Tanh, Sigmoid, Relu, Gelu, GeluTanh, Silu, Square };
enum class ReduceKind : int32_t { Sum, Max };
enum class RandomKind : int32_t { Uniform, Normal };
enum class AdamKind : int32_t { AdamW, ScheduleFree };

}  // namespace mosaic
