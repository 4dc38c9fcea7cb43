// Modifiers of the scores of a block between the two products of attention: softcap, ALiBi slopes and dropout.
#pragma once

#include "attention/attention_kernels.h"
#include "kernels/math.h"
#include "kernels/philox.h"
#include "simd/inline.h"

namespace mosaic {

/// Modifiers for panels of N vectors. Matrices are [keys][width].
template <class V, int N>
struct ScoreBlock {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes, width = N * L;

  /// Modifies the scaled scores of keys [first, first + count) of the tile in place. If `derivative` is not null,
  /// stores the derivative of the softcap there.
  MOSAIC_NOINLINE void modify(const ScoreModifiers& modifiers, int32_t first, int32_t count, float* scores,
                              float* derivative) {
    const Vec cap = V::set1(modifiers.softcap), one = V::set1(1);
    for (int32_t j = 0; j < count; ++j) {
      for (int n = 0; n < N; ++n) {
        float* at = scores + j * width + n * L;
        Vec s = V::load(at);
        if (modifiers.softcap > 0) {
          const Vec t = tanhOf<V>(V::div(s, cap));
          if (derivative != nullptr) V::store(derivative + j * width + n * L, V::sub(one, V::mul(t, t)));
          s = V::mul(t, cap);
        }
        if (modifiers.slopes != nullptr)
          s = V::sub(s, V::mul(V::load(modifiers.slopes + n * L), distance(modifiers, n, first + j)));
        V::store(at, s);
      }
    }
  }

  /// mask[j][row] ← 0 where the weight is dropped, else its scale factor.
  MOSAIC_NOINLINE void drawDropoutMask(const ScoreModifiers& modifiers, int32_t first, int32_t count, float* mask) {
    const Vec keptScale = V::set1(modifiers.dropoutScale);
    const Bits<V> none{};
    for (int n = 0; n < N; ++n) {
      Bits<V> words[4];
      int32_t drawn = -1;  // index of the last drawn block; the words of one counter serve four keys
      for (int32_t j = 0; j < count; ++j) {
        const int32_t position = modifiers.keys[first + j];
        if (position >> 2 != drawn) {
          drawn = position >> 2;
          words[0] = none + static_cast<uint32_t>(drawn);
          __builtin_memcpy(&words[1], modifiers.queries + n * L, sizeof words[1]);
          words[2] = none + modifiers.batch;
          __builtin_memcpy(&words[3], modifiers.heads + n * L, sizeof words[3]);
          runPhiloxRounds<V>(words, modifiers.philoxKey[0], modifiers.philoxKey[1]);
        }
        const Int<V> bits = reinterpret_cast<Int<V>>(words[position & 3] >> 8);
        const Int<V> isDropped = reinterpret_cast<Int<V>>(bits < static_cast<int32_t>(modifiers.dropoutThreshold));
        V::store(mask + j * width + n * L, blend<V>(isDropped, V::zero(), keptScale));
      }
    }
  }

 private:
  /// Returns |query − key| for vector n of the rows.
  MOSAIC_INLINE Vec distance(const ScoreModifiers& modifiers, int n, int32_t key) {
    Int<V> apart;
    __builtin_memcpy(&apart, modifiers.queries + n * L, sizeof apart);
    apart -= modifiers.keys[key];
    const Int<V> sign = apart >> 31;
    return __builtin_convertvector((apart ^ sign) - sign, Vec);
  }
};

}  // namespace mosaic
