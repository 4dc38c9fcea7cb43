// Random placements and masks, of the kinds that backends produce.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "attention/attention.h"

namespace mosaic::check {

using Random = std::mt19937;

inline int64_t randomInt(Random& random, int64_t from, int64_t to) {
  return std::uniform_int_distribution<int64_t>(from, to)(random);
}

/// Returns a shard of n positions: all, a contiguous part, zigzag, striped, or scattered chunks in any order.
inline std::vector<Span> randomSpans(Random& random, int64_t n) {
  const int64_t ranks = randomInt(random, 1, 4), rank = randomInt(random, 0, ranks - 1);
  const auto chunk = [&](int64_t i, int64_t chunkCount) {
    return Span{n * i / chunkCount, n * (i + 1) / chunkCount - n * i / chunkCount, 1};
  };
  switch (randomInt(random, 0, 4)) {
    case 0: return {{0, n, 1}};
    case 1: return {chunk(rank, ranks)};
    case 2: return {chunk(rank, 2 * ranks), chunk(2 * ranks - 1 - rank, 2 * ranks)};
    case 3: return {{rank, (n - rank + ranks - 1) / ranks, ranks}};
    default: {
      std::vector<Span> chunks;
      const int64_t count = randomInt(random, 2, 9);
      for (int64_t i = 0; i < count; ++i) {
        if (randomInt(random, 0, 2) != 0) chunks.push_back(chunk(i, count));
      }
      std::shuffle(chunks.begin(), chunks.end(), random);
      return chunks;
    }
  }
}

/// Cuts [0, n) at random places.
inline std::vector<int64_t> randomCuts(Random& random, int64_t n, int64_t parts) {
  std::vector<int64_t> cuts{0, n};
  for (int64_t i = 1; i < parts; ++i) cuts.push_back(randomInt(random, 0, n));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// Returns random disjoint slices over nq × nk positions.
inline std::vector<Slice> randomMask(Random& random, int64_t nq, int64_t nk) {
  const auto type = [&] { return static_cast<int32_t>(randomInt(random, 0, 3)); };
  std::vector<Slice> slices;
  switch (randomInt(random, 0, 5)) {
    case 0: return {{0, nq, 0, nk, 0}};
    case 1: return {{0, nq, 0, nk, 1}};
    case 2: return {{0, nq, 0, nk, type()}};
    case 3: {  // documents, full or causal, many of them short
      const auto q = randomCuts(random, nq, randomInt(random, 2, 40));
      for (size_t i = 0; i + 1 < q.size(); ++i) {
        slices.push_back({q[i], q[i + 1], std::min(q[i], nk), std::min(q[i + 1], nk), type()});
      }
      break;
    }
    case 4: {  // a band: causal at its start, then both bounds move with the row
      const int64_t w = randomInt(random, 1, std::min(nq, nk));
      slices.push_back({0, w, 0, w, 1});
      if (nq > w && nk >= nq) slices.push_back({w, nq, 1, nq, 3});
      break;
    }
    default: {  // any partition, any types, some missing
      const auto q = randomCuts(random, nq, randomInt(random, 1, 5)),
                 k = randomCuts(random, nk, randomInt(random, 1, 5));
      for (size_t i = 0; i + 1 < q.size(); ++i) {
        for (size_t j = 0; j + 1 < k.size(); ++j) {
          if (randomInt(random, 0, 3) != 0) slices.push_back({q[i], q[i + 1], k[j], k[j + 1], type()});
        }
      }
    }
  }
  std::shuffle(slices.begin(), slices.end(), random);
  return slices;
}

}  // namespace mosaic::check
