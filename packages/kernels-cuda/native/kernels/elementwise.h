// Kernels that process single elements, and their arguments.
#pragma once

#include "kernels/operand.h"
#include "mosaic/kernel_enums.h"

namespace mosaic::cuda {

struct FillParameters {
  Loop<1> loop;
  float value;
};
struct CopyParameters {
  Loop<2> loop;
};
struct BinaryParameters {
  Loop<3> loop;
  BinaryOp op;
};
struct ScalarParameters {
  Loop<2> loop;
  BinaryOp op;
  float value;
};
struct UnaryParameters {
  Loop<2> loop;
  UnaryOp op;
};
struct GateParameters {
  Loop<3> loop;
  UnaryOp op;
};
/// Operands for pairs of features: first and second of out, first and second of x, cosine and sine.
struct RotaryParameters {
  Loop<6> loop;
  float sign;  // −1 rotates backward
};
struct UnaryBackwardParameters {
  Loop<3> loop;
  UnaryOp op;
};

/// Philox4x32-10: element i of a tensor depends only on seed, stream and i.
struct Philox {
  uint64_t seed, stream;
};
struct RandomParameters {
  Loop<1> loop;
  RandomKind kind;
  float a, b;
  Philox philox;
};
/// The operand after out and x has no memory: its offsets are the indices of the random numbers.
struct DropoutParameters {
  Loop<3> loop;
  float probability;
  int64_t first;
  Philox philox;
};
struct AdamParameters {
  Loop<4> loop;  // parameter, first, second, gradient
  AdamKind kind;
  float rate, beta1, beta2, oneMinusBeta1, oneMinusBeta2, stepSize, inverseRootCorrection, epsilon, decayFactor, decay,
      mix, updateScale;
};

}  // namespace mosaic::cuda
