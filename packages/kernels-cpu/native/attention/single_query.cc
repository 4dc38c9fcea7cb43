#include "attention/single_query.h"

#include <algorithm>
#include <cmath>

#include "attention/merge.h"

namespace mosaic {
namespace {

constexpr int64_t kDepthMultiple = 16;  // of rows that `widenRow` gives

int64_t groupOf(const AttendArguments& args) { return args.q.shape[1] / args.kv.k.shape[1]; }

char* dataOf(const Rows& rows) { return static_cast<char*>(const_cast<void*>(rows.data)); }

}  // namespace

bool isSingleQuery(const ForwardCall& call) {
  const auto& [k, v] = call.args.kv;
  const int32_t lanes = call.kernels.narrowAttention.width;
  return call.args.q.shape[2] == 1 && 2 * groupOf(call.args) <= lanes && call.kernels.products == DType::Float32 &&
         !call.modifiers.any() && k.stride[3] == 1 && v.stride[3] == 1 && v.shape[3] % lanes == 0;
}

SingleQuery::SingleQuery(const ForwardCall& call, int64_t batch, int64_t keyHead, Arena& arena)
    : call_(call),
      batch_(batch),
      keyHead_(keyHead),
      group_(groupOf(call.args)),
      depthStride_(roundUp(call.args.q.shape[3], kDepthMultiple)),
      q_(arena.allocate<float>(group_ * depthStride_)) {
  const auto& [state, q, kv, tile] = call.args;
  const int64_t depth = q.shape[3], valueDepth = kv.v.shape[3];
  fold_ = {arena.allocate<float>(group_ * valueDepth),
           arena.allocate<float>(group_),
           arena.allocate<float>(group_),
           arena.allocate<float>(group_ * RowFold::kKeys),
           valueDepth,
           static_cast<int32_t>(group_),
           static_cast<int32_t>(valueDepth)};
  std::fill_n(fold_.out, group_ * valueDepth, 0.0f);
  std::fill_n(fold_.max, group_, -INFINITY);
  std::fill_n(fold_.sum, group_, 0.0f);
  for (int64_t h = 0; h < group_; ++h) {
    const Rows row = rowsOf(q, {batch, keyHead * group_ + h, 0});
    float* to = q_ + h * depthStride_;
    call.kernels.gemm.widenRow({dataOf(row), row.dtype, row.rowStride, row.columnStride}, 0, depth, to);
    for (int64_t d = 0; d < depth; ++d) to[d] *= tile.scale;
  }
}

void SingleQuery::fold(std::span<const Segment> segments, Range keys) {
  const auto& [k, v] = call_.args.kv;
  for (const Segment& s : segments) {
    const int64_t end = std::min<int64_t>({s.end, s.visible.hi[0], keys.end});
    for (int64_t key = std::max<int64_t>({s.begin, s.visible.lo[0], keys.begin}), next; key < end; key = next) {
      next = std::min(end, (key / RowFold::kKeys + 1) * RowFold::kKeys);
      const Rows rows = rowsOf(k, {batch_, keyHead_, key});
      call_.kernels.gemm.multiplyRows({q_, depthStride_, {dataOf(rows), rows.dtype, 1, rows.rowStride}, group_,
                                       next - key, k.shape[3], fold_.weights, RowFold::kKeys});
      call_.kernels.foldRows(fold_, rowsOf(v, {batch_, keyHead_, key}), static_cast<int32_t>(next - key));
    }
  }
}

void SingleQuery::store(const AttentionState& state, bool isEmpty) const {
  const int64_t depth = fold_.valueDepth;
  for (int64_t h = 0; h < group_; ++h) {
    const HeadRows at{batch_, keyHead_ * group_ + h, 0};
    const FloatRows out(state.out, at), lse(state.lse, at);
    const float sum = fold_.sum[h];
    if (sum == 0) {
      if (isEmpty) lse(0) = -INFINITY;
      continue;
    }
    float* row = fold_.out + h * depth;
    for (int64_t d = 0; d < depth; ++d) row[d] /= sum;
    const MergeWeights weight = mergeWeights(isEmpty ? -INFINITY : lse(0), std::log(double{sum}) + fold_.max[h]);
    lse(0) = weight.lse;
    mergeRow(weight, out.row(0), {row, 1}, depth);
  }
}

}  // namespace mosaic
