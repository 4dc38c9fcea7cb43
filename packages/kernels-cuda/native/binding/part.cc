#include "binding/part.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>

namespace mosaic::cuda {

namespace {

/// Number of positions of a span that lie before `position`.
int64_t countPositionsBefore(const Span& span, int64_t position) {
  if (position <= span.start) return 0;
  return std::min(span.length, (position - span.start + span.step - 1) / span.step);
}

bool hasVisible(const VisibleInterval& visible) {
  return firstRowBeyond(visible, visible.end, 0) < firstRowBeyond(visible, visible.begin, visible.keys - 1);
}

/// An edge farther away than any key is as good as one that no row reaches.
Edge edge(int64_t at, int64_t by) {
  return {static_cast<int32_t>(std::clamp<int64_t>(at, -kMaxPosition, kMaxPosition)), static_cast<int32_t>(by)};
}

/// A span of rows, one of keys, and where their first ones lie among all local rows and keys.
struct SpanPair {
  const Span &q, &k;
  int64_t row, key;
};

std::optional<PlacedPart> makePart(const SpanPair& pair, const Slice& slice) {
  const auto& [q, k, row, key] = pair;
  const int64_t firstRow = countPositionsBefore(q, slice.q0), rows = countPositionsBefore(q, slice.q1) - firstRow;
  const int64_t firstKey = countPositionsBefore(k, slice.k0), keys = countPositionsBefore(k, slice.k1) - firstKey;
  if (rows <= 0 || keys <= 0) return std::nullopt;
  constexpr int64_t kMargin = 512;  // kernels ask of rows and keys that far beyond the last
  if ((rows + kMargin) * q.step > kMaxPosition || (keys + kMargin) * k.step > kMaxPosition) {
    throw std::invalid_argument(
        "attend: expected spans of fewer than 2^30 positions, received a longer span; split the span");
  }
  if (row + firstRow + rows > INT32_MAX || key + firstKey + keys > INT32_MAX) {
    throw std::invalid_argument(
        "attend: expected fewer than 2^31 rows and keys per rank, received more; shard the sequence over more ranks");
  }
  const int64_t position = q.start + firstRow * q.step, from = k.start + firstKey * k.step;
  const bool begins = (slice.type & 2) != 0, ends = (slice.type & 1) != 0;
  PlacedPart part{{static_cast<int32_t>(row + firstRow), static_cast<int32_t>(key + firstKey), {}, 0},
                  position,
                  q.step,
                  from};
  part.visible.begin = edge(slice.k0 - from + (begins ? position - slice.q0 : 0), begins ? q.step : 0);
  part.visible.end = edge(slice.k1 - from - (ends ? slice.q1 - 1 - position : 0), ends ? q.step : 0);
  part.visible.step = static_cast<int32_t>(k.step);
  part.visible.rows = static_cast<int32_t>(rows);
  part.visible.keys = static_cast<int32_t>(keys);
  return hasVisible(part.visible) ? std::optional(part) : std::nullopt;
}

/// The numbers of a part along the axis that blocks own.
struct Extent {
  int32_t first, length;
};
Extent partExtent(const Part& part, Owner owner) {
  return owner == Owner::Rows ? Extent{part.row, part.visible.rows} : Extent{part.key, part.visible.keys};
}

/// The same part, of the rows (or keys) [first, end) alone.
PlacedPart restrictTo(PlacedPart part, Owner owner, int32_t first, int32_t end) {
  VisibleInterval& visible = part.visible;
  if (owner == Owner::Rows) {
    const int64_t skipped = first - part.row;
    visible.begin = edge(visible.begin.offset + skipped * visible.begin.slope, visible.begin.slope);
    visible.end = edge(visible.end.offset + skipped * visible.end.slope, visible.end.slope);
    visible.rows = end - first;
    part.row = first;
    part.rowPosition += skipped * part.rowStep;
  } else {
    const int64_t skipped = int64_t{first - part.key} * visible.step;
    visible.begin = edge(visible.begin.offset - skipped, visible.begin.slope);
    visible.end = edge(visible.end.offset - skipped, visible.end.slope);
    visible.keys = end - first;
    part.key = first;
    part.keyPosition += skipped;
  }
  return part;
}

/// Parts of the same rows (or keys), by the first of these.
using Groups = std::map<int32_t, std::vector<PlacedPart>>;

Groups groupsOf(std::span<const PlacedPart> parts, Owner owner) {
  std::vector<int32_t> cuts;
  for (const Part& part : parts) {
    const auto [first, length] = partExtent(part, owner);
    cuts.push_back(first);
    cuts.push_back(first + length);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  Groups groups;
  for (const PlacedPart& part : parts) {
    const auto [first, length] = partExtent(part, owner);
    for (auto cut = std::lower_bound(cuts.begin(), cuts.end(), first); *cut < first + length; cut++) {
      const PlacedPart subPart = restrictTo(part, owner, cut[0], cut[1]);
      if (hasVisible(subPart.visible)) groups[*cut].push_back(subPart);
    }
  }
  return groups;
}

/// About how long a block of the group takes.
int64_t estimateCost(const std::vector<PlacedPart>& group, Owner owner) {
  int64_t length = 0;
  for (const Part& part : group) length += owner == Owner::Rows ? part.visible.keys : part.visible.rows;
  return length;
}

/// Appends the parts of a tile through some slices.
void addParts(const Tile& tile, const std::vector<Slice>& slices, std::vector<PlacedPart>& parts) {
  int64_t row = 0;
  for (const Span& rows : tile.q) {
    int64_t key = 0;
    for (const Span& keys : tile.k) {
      for (const Slice& slice : slices) {
        if (const std::optional<PlacedPart> part = makePart({rows, keys, row, key}, slice)) parts.push_back(*part);
      }
      key += keys.length;
    }
    row += rows.length;
  }
}

bool isEqual(const std::vector<Slice>& a, const std::vector<Slice>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Slice& x, const Slice& y) {
    return x.q0 == y.q0 && x.q1 == y.q1 && x.k0 == y.k0 && x.k1 == y.k1 && x.type == y.type;
  });
}

/// The masks of some batch elements of a call; none if it has none.
std::span<const std::vector<Slice>> sampleMasksOf(const Tile& tile, const Range& batches) {
  if (!tile.modifiers || tile.modifiers->sampleMasks.empty()) return {};
  const std::vector<std::vector<Slice>>& masks = tile.modifiers->sampleMasks;
  const int64_t first = batches.first + (tile.modifiers->origin ? tile.modifiers->origin->batch : 0);
  if (first < 0 || first + batches.count > static_cast<int64_t>(masks.size())) {
    throw std::invalid_argument("attend: expected one mask per sample, received fewer masks");
  }
  return std::span(masks).subspan(static_cast<size_t>(first), static_cast<size_t>(batches.count));
}

}  // namespace

TileParts makeParts(const Tile& tile, const Range& batches) {
  const std::span<const std::vector<Slice>> samples = sampleMasksOf(tile, batches);
  const bool areEqual =
      std::all_of(samples.begin(), samples.end(), [&](const auto& each) { return isEqual(each, samples.front()); });
  TileParts all{std::vector<std::vector<PlacedPart>>(areEqual ? 1 : samples.size()),
                areEqual ? static_cast<unsigned>(batches.count) : 1};
  for (size_t i = 0; i < all.samples.size(); i++) {
    addParts(tile, tile.mask, all.samples[i]);
    if (!samples.empty()) addParts(tile, samples[i], all.samples[i]);
  }
  return all;
}

std::vector<PartLaunch> makeLaunches(const TileParts& tile, Owner owner, int own) {
  std::vector<PartLaunch> launches;
  for (size_t batch = 0; batch < tile.samples.size(); batch++) {
    std::vector<std::vector<PlacedPart>> groups;
    for (auto& [first, group] : groupsOf(tile.samples[batch], owner)) groups.push_back(std::move(group));
    std::stable_sort(groups.begin(), groups.end(),
                     [&](const auto& a, const auto& b) { return estimateCost(a, owner) > estimateCost(b, owner); });
    bool isFull = true;  // the last launch, or it is another batch element's
    for (const std::vector<PlacedPart>& group : groups) {
      const auto blocks = static_cast<unsigned>((partExtent(group[0], owner).length + own - 1) / own);
      bool isNew = true;  // in this launch
      for (PlacedPart part : group) {
        if (isFull) {
          launches.push_back({{}, {}, 0, tile.depth});
          launches.back().parts.batch = static_cast<int32_t>(batch);
          isNew = true;
        }
        PartLaunch& launch = launches.back();
        if (isNew) launch.blocks += blocks;
        isNew = false;
        part.block = static_cast<int32_t>(launch.blocks - blocks);
        launch.positions[launch.parts.count] = part.positions();
        launch.parts.part[launch.parts.count++] = part;
        isFull = launch.parts.count == kMaxParts;
      }
    }
  }
  return launches;
}

}  // namespace mosaic::cuda
