#include "attention/single_query.h"

#include <algorithm>
#include <cmath>

#include "attention/merge.h"

namespace mosaic {
namespace {

int64_t groupSize(const AttendArguments& args) { return args.q.shape[1] / args.kv.k.shape[1]; }

}  // namespace

bool isSingleQuery(const ForwardCall& call) {
  const AttendArguments& args = call.args;
  const auto& [k, v] = args.kv;
  const AttentionKernels& kernels = call.kernels.narrowAttention;
  return args.q.shape[2] == 1 && 2 * groupSize(args) <= kernels.width && !call.modifiers.modifiesScores() &&
         k.dtype == v.dtype && call.kernels.foldQuery.of(k.dtype) != nullptr && k.stride[3] == 1 && v.stride[3] == 1 &&
         k.shape[3] % kernels.depthMultiple == 0 && v.shape[3] % kernels.depthMultiple == 0;
}

SingleQuery::SingleQuery(const ForwardCall& call, int64_t batch, int64_t keyHead, Arena& arena)
    : call_(call),
      batch_(batch),
      firstHead_(keyHead * groupSize(call.args)),
      blockKeys_(QueryFold::kVectors * call.kernels.narrowAttention.width),
      reader_(call.kernels.narrowAttention, call.args.kv, KvUse::SingleQuery, arena) {
  const auto& [state, q, kv, tile] = call.args;
  const int64_t depth = q.shape[3], valueDepth = kv.v.shape[3], rows = groupSize(call.args);
  reader_.select(batch, keyHead);
  const bool isPaired = call.kernels.products == DType::BFloat16;
  const int64_t elementBytes = dtypeBytes(call.kernels.products);
  char* queries = arena.allocate<char>(rows * depth * elementBytes);
  float* sum = arena.allocate<float>(rows);
  float* scores = arena.allocate<float>(rows * blockKeys_);
  queryFold_ = {queries,
                arena.allocate<float>(rows * valueDepth),
                arena.allocate<float>(rows),
                sum,
                isPaired ? arena.allocate<float>(rows) : sum,
                scores,
                isPaired ? arena.allocate<uint16_t>(rows * blockKeys_) : static_cast<void*>(scores),
                arena.allocate<char>(depth * blockKeys_ * elementBytes),
                tile.scale,
                static_cast<int32_t>(rows),
                static_cast<int32_t>(depth),
                static_cast<int32_t>(valueDepth)};
  std::fill_n(queryFold_.out, rows * valueDepth, 0.0f);
  std::fill_n(queryFold_.max, rows, -INFINITY);
  std::fill_n(queryFold_.sum, rows, 0.0f);
  std::fill_n(queryFold_.weightSum, rows, 0.0f);
  for (int64_t h = 0; h < rows; ++h) {
    char* to = queries + h * depth * elementBytes;
    call.kernels.attention.unpack(rowsOf(q, {batch, firstHead_ + h, 0}), 1, depth, to, depth);
    if (isPaired) continue;
    for (int64_t d = 0; d < depth; ++d) reinterpret_cast<float*>(to)[d] *= tile.scale;
  }
}

/// Blocks lie on a fixed grid, so that a result depends on nothing but the keys.
void SingleQuery::fold(std::span<const Segment> segments, Range keys) {
  const auto fold = call_.kernels.foldQuery.of(call_.args.kv.k.dtype);
  for (const Segment& s : segments) {
    const int64_t end = std::min<int64_t>({s.end, s.bounds.hi[0], keys.end});
    for (int64_t key = std::max<int64_t>({s.begin, s.bounds.lo[0], keys.begin}), next; key < end; key = next) {
      next = std::min(end, (key / blockKeys_ + 1) * blockKeys_);
      KvRows kv = reader_.read(static_cast<int32_t>(key), static_cast<int32_t>(next - key));
      kv.count = static_cast<int32_t>(next - key);  // without those that round it up
      kv.nextK = reader_.upcomingKeys(next, std::min<int64_t>(blockKeys_, end - next));
      kv.nextV = reader_.upcomingValues(next, std::min<int64_t>(blockKeys_, end - next));
      fold(queryFold_, kv);
    }
  }
}

void SingleQuery::store(const AttentionState& state, bool isStateEmpty) const {
  const int64_t depth = queryFold_.valueDepth;
  for (int32_t h = 0; h < queryFold_.rows; ++h) {
    const HeadRows headRows{batch_, firstHead_ + h, 0};
    const FloatRows out(state.out, headRows), lse(state.lse, headRows);
    const float sum = queryFold_.sum[h];
    if (sum == 0) {
      if (isStateEmpty) lse(0) = -INFINITY;
      continue;
    }
    float* row = queryFold_.out + h * depth;
    for (int64_t d = 0; d < depth; ++d) row[d] /= queryFold_.weightSum[h];
    const MergeWeights weight =
        mergeWeights(isStateEmpty ? -INFINITY : lse(0), std::log(double{sum}) + queryFold_.max[h]);
    lse(0) = weight.lse;
    mergeRow(weight, out.row(0), {row, 1}, depth);
  }
}

}  // namespace mosaic
