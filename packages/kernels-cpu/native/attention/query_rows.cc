#include "attention/query_rows.h"

#include <algorithm>
#include <cmath>

#include "attention/merge.h"

namespace mosaic {
namespace {

int64_t groupSize(const AttendArguments& args) { return args.q.shape[1] / args.kv.k.shape[1]; }

}  // namespace

bool areRowsFaster(const ForwardCall& call) {
  const AttendArguments& args = call.args;
  const auto& [k, v] = args.kv;
  const AttentionKernels& kernels = call.kernels.narrowAttention;
  const bool isWidened = k.dtype != kernels.products;
  const int64_t rows = args.q.shape[2] * groupSize(args);
  const int64_t maxRows = !isWidened               ? kernels.width / 2
                          : kernels.readsValueRows ? kernels.width * 3 / 4
                                                   : kernels.width;
  return rows <= maxRows && !call.modifiers.modifiesScores() && k.dtype == v.dtype &&
         call.kernels.foldQuery.of(k.dtype) != nullptr && k.stride[3] == 1 && v.stride[3] == 1 &&
         k.shape[3] % kernels.depthMultiple == 0 && v.shape[3] % kernels.depthMultiple == 0;
}

QueryRows::QueryRows(const ForwardCall& call, int64_t batch, int64_t keyHead, Arena& arena)
    : call_(call),
      batch_(batch),
      groupSize_(groupSize(call.args)),
      firstHead_(keyHead * groupSize_),
      blockKeys_(QueryFold::kVectors * call.kernels.narrowAttention.width),
      reader_(call.kernels.narrowAttention, call.args.kv, KvUse::QueryRows, arena) {
  const auto& [state, q, kv, tile] = call.args;
  const int64_t depth = q.shape[3], valueDepth = kv.v.shape[3], rows = q.shape[2] * groupSize_;
  reader_.select(batch, keyHead);
  const bool isPaired = call.kernels.products == DType::BFloat16;
  const int64_t elementBytes = dtypeBytes(call.kernels.products);
  char* queries = arena.allocate<char>(rows * depth * elementBytes);
  float* sum = arena.allocate<float>(rows);
  float* scores = arena.allocate<float>(rows * blockKeys_);
  rows_ = {queries,
           arena.allocate<float>(rows * valueDepth),
           arena.allocate<float>(rows),
           sum,
           isPaired ? arena.allocate<float>(rows) : sum,
           scores,
           isPaired ? arena.allocate<uint16_t>(rows * blockKeys_) : static_cast<void*>(scores),
           arena.allocate<char>(QueryFold::kColumnBytes),
           tile.scale,
           static_cast<int32_t>(rows),
           static_cast<int32_t>(depth),
           static_cast<int32_t>(valueDepth)};
  std::fill_n(rows_.out, rows * valueDepth, 0.0f);
  std::fill_n(rows_.max, rows, -INFINITY);
  std::fill_n(rows_.sum, rows, 0.0f);
  std::fill_n(rows_.weightSum, rows, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    char* to = queries + r * depth * elementBytes;
    const HeadRows row{batch, firstHead_ + r % groupSize_, r / groupSize_};
    call.kernels.attention.unpack(rowsOf(q, row), 1, depth, to, depth);
    if (isPaired) continue;
    for (int64_t d = 0; d < depth; ++d) reinterpret_cast<float*>(to)[d] *= tile.scale;
  }
}

/// Keys that all queries see are folded together. Those at the edges, which only some queries see, are folded query by
/// query, so that a NaN reaches only rows that see it.
void QueryRows::fold(std::span<const Segment> segments, Range keys) {
  const int64_t queries = call_.args.q.shape[2];
  const auto foldEdges = [&](auto edgeOf) {
    for (int64_t i = 0; i < queries; ++i) {
      const Range edge = edgeOf(i);
      foldKeys(rowsOfQuery(i), {std::max(edge.begin, keys.begin), std::min(edge.end, keys.end)});
    }
  };
  for (const Segment& s : segments) {
    const auto& [lo, hi] = s.bounds;
    foldEdges([&](int64_t i) { return Range{lo[i], std::min(hi[i], s.coreBegin)}; });
    foldKeys(rows_, {std::max<int64_t>(s.coreBegin, keys.begin), std::min<int64_t>(s.coreEnd, keys.end)});
    foldEdges([&](int64_t i) { return Range{std::max(lo[i], s.coreEnd), hi[i]}; });
  }
}

QueryFold QueryRows::rowsOfQuery(int64_t query) const {
  QueryFold fold = rows_;
  const int64_t row = query * groupSize_, elementBytes = dtypeBytes(call_.kernels.products);
  fold.q = static_cast<const char*>(fold.q) + row * fold.depth * elementBytes;
  fold.out += row * fold.valueDepth;
  for (float** rowStatistic : {&fold.max, &fold.sum, &fold.weightSum}) *rowStatistic += row;
  fold.scores += row * blockKeys_;
  fold.weights = static_cast<char*>(fold.weights) + row * blockKeys_ * elementBytes;
  fold.rows = static_cast<int32_t>(groupSize_);
  return fold;
}

/// Blocks lie on a fixed grid.
void QueryRows::foldKeys(const QueryFold& rows, Range keys) {
  const auto fold = call_.kernels.foldQuery.of(call_.args.kv.k.dtype);
  for (int64_t key = keys.begin, next; key < keys.end; key = next) {
    next = std::min(keys.end, (key / blockKeys_ + 1) * blockKeys_);
    KvRows kv = reader_.read(static_cast<int32_t>(key), static_cast<int32_t>(next - key));
    kv.count = static_cast<int32_t>(next - key);  // excludes padding
    kv.nextK = reader_.upcomingKeys(next, std::min<int64_t>(blockKeys_, keys.end - next));
    kv.nextV = reader_.upcomingValues(next, std::min<int64_t>(blockKeys_, keys.end - next));
    fold(rows, kv);
  }
}

void QueryRows::store(const AttentionState& state, bool isStateEmpty) const {
  const int64_t depth = rows_.valueDepth;
  for (int32_t r = 0; r < rows_.rows; ++r) {
    const HeadRows headRows{batch_, firstHead_ + r % groupSize_, r / groupSize_};
    const FloatRows out(state.out, headRows), lse(state.lse, headRows);
    const float sum = rows_.sum[r];
    if (sum == 0) {
      if (isStateEmpty) lse(0) = -INFINITY;
      continue;
    }
    float* row = rows_.out + r * depth;
    for (int64_t d = 0; d < depth; ++d) row[d] /= rows_.weightSum[r];
    const MergeWeights weight = mergeWeights(isStateEmpty ? -INFINITY : lse(0), std::log(double{sum}) + rows_.max[r]);
    lse(0) = weight.lse;
    mergeRow(weight, out.row(0), {row, 1}, depth);
  }
}

}  // namespace mosaic
