// Coefficients for 2^f, minimax in relative error (1.9e-9; about 8e-8 after float32 rounding), lowest degree first.
#pragma once

namespace mosaic {

/// e^x = 2^(x · kLog2e).
inline constexpr float kLog2e = 1.44269504088896341f;

/// Valid on [−½, ½], for traits that round to the nearest integer. The first is exactly 1, so that exp2(0) = 1.
inline constexpr float kExp2NearestCoefficients[7] = {1.0f,           0.693147202855174f,   0.24022647913620052f,
                                          0.05550332470865087f, 0.009618437357982703f, 0.0013398874524877882f,
                                          0.000153533620612158f};

/// Valid on [0, 1), for traits that round down.
inline constexpr float kExp2FloorCoefficients[7] = {1.0f,           0.693146983840617f,   0.24022983627398586f,
                                          0.055483341984451144f, 0.009678840996367946f, 0.0012439687825028288f,
                                          0.00021702255467432224f};

/// Valid on [0, 1), of lower degree: error 3e-6, for weights that are rounded to bfloat16, whose half unit is 2e-3.
inline constexpr float kExp2Bf16Coefficients[5] = {1.0f, 0.693044844800803f, 0.241280205560967f, 0.0522424724926063f,
                                                   0.0134266853494473f};

/// Below this, exp2 is exactly 0, because such a small weight would be denormal: slow to multiply, and lost in the sum.
inline constexpr float kExp2Min = -125.5f;

}  // namespace mosaic
