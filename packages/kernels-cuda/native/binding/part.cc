#include "binding/part.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "mosaic/positions.h"

namespace mosaic::cuda {

namespace {

bool hasVisiblePairs(const VisibleInterval& visible) {
  return firstRowBeyond(visible, visible.end, 0) < firstRowBeyond(visible, visible.begin, visible.keys - 1);
}

/// Clamps a bound to kMaxPosition: a bound past the last key is equivalent to no bound.
Edge makeEdge(int64_t offset, int64_t slope) {
  return {static_cast<int32_t>(std::clamp<int64_t>(offset, -kMaxPosition, kMaxPosition)), static_cast<int32_t>(slope)};
}

/// A span of rows and a span of keys, with the local indices of their first row and key.
struct SpanPair {
  const Span &q, &k;
  int64_t row, key;
};

std::optional<PositionedPart> makePart(const SpanPair& pair, const Slice& slice) {
  const auto& [q, k, row, key] = pair;
  const int64_t firstRow = countPositionsBefore(q, slice.q0), rows = countPositionsBefore(q, slice.q1) - firstRow;
  const int64_t firstKey = countPositionsBefore(k, slice.k0), keys = countPositionsBefore(k, slice.k1) - firstKey;
  if (rows <= 0 || keys <= 0) return std::nullopt;
  constexpr int64_t kMaxOverrun = 512;  // kernels evaluate rows and keys up to this far past the last
  if ((rows + kMaxOverrun) * q.step > kMaxPosition || (keys + kMaxOverrun) * k.step > kMaxPosition) {
    throw std::invalid_argument("attend: expected spans with (length + 512) * step below 2^30, received " +
                                std::to_string(rows) + " queries with step " + std::to_string(q.step) + " and " +
                                std::to_string(keys) + " keys with step " + std::to_string(k.step) +
                                "; split the spans");
  }
  if (row + firstRow + rows > INT32_MAX || key + firstKey + keys > INT32_MAX) {
    throw std::invalid_argument("attend: expected fewer than 2^31 queries and keys per rank, received at least " +
                                std::to_string(row + firstRow + rows) + " queries and " +
                                std::to_string(key + firstKey + keys) + " keys; shard the sequence over more ranks");
  }
  const int64_t rowPosition = q.start + firstRow * q.step, keyPosition = k.start + firstKey * k.step;
  const bool isBeginDiagonal = (slice.type & 2) != 0, isEndDiagonal = (slice.type & 1) != 0;
  PositionedPart part{{static_cast<int32_t>(row + firstRow), static_cast<int32_t>(key + firstKey), {}, 0},
                      rowPosition,
                      q.step,
                      keyPosition};
  part.visible.begin =
      makeEdge(slice.k0 - keyPosition + (isBeginDiagonal ? rowPosition - slice.q0 : 0), isBeginDiagonal ? q.step : 0);
  part.visible.end =
      makeEdge(slice.k1 - keyPosition - (isEndDiagonal ? slice.q1 - 1 - rowPosition : 0), isEndDiagonal ? q.step : 0);
  part.visible.step = static_cast<int32_t>(k.step);
  part.visible.rows = static_cast<int32_t>(rows);
  part.visible.keys = static_cast<int32_t>(keys);
  return hasVisiblePairs(part.visible) ? std::optional(part) : std::nullopt;
}

/// The range of a part along the axis that blocks own.
struct Extent {
  int32_t first, length;
};
Extent partExtent(const Part& part, Owner owner) {
  return owner == Owner::Rows ? Extent{part.row, part.visible.rows} : Extent{part.key, part.visible.keys};
}

/// Restricts a part to the rows (or keys) [first, end).
PositionedPart restrictPart(PositionedPart part, Owner owner, int32_t first, int32_t end) {
  VisibleInterval& visible = part.visible;
  if (owner == Owner::Rows) {
    const int64_t shift = first - part.row;
    visible.begin = makeEdge(visible.begin.offset + shift * visible.begin.slope, visible.begin.slope);
    visible.end = makeEdge(visible.end.offset + shift * visible.end.slope, visible.end.slope);
    visible.rows = end - first;
    part.row = first;
    part.rowPosition += shift * part.rowStep;
  } else {
    const int64_t shift = int64_t{first - part.key} * visible.step;
    visible.begin = makeEdge(visible.begin.offset - shift, visible.begin.slope);
    visible.end = makeEdge(visible.end.offset - shift, visible.end.slope);
    visible.keys = end - first;
    part.key = first;
    part.keyPosition += shift;
  }
  return part;
}

/// Groups of parts with equal rows (or keys), by the first row (or key).
using PartGroups = std::map<int32_t, std::vector<PositionedPart>>;

PartGroups groupParts(std::span<const PositionedPart> parts, Owner owner) {
  std::vector<int32_t> boundaries;
  for (const Part& part : parts) {
    const auto [first, length] = partExtent(part, owner);
    boundaries.push_back(first);
    boundaries.push_back(first + length);
  }
  std::sort(boundaries.begin(), boundaries.end());
  boundaries.erase(std::unique(boundaries.begin(), boundaries.end()), boundaries.end());
  PartGroups groups;
  for (const PositionedPart& part : parts) {
    const auto [first, length] = partExtent(part, owner);
    for (auto boundary = std::lower_bound(boundaries.begin(), boundaries.end(), first); *boundary < first + length;
         boundary++) {
      const PositionedPart subPart = restrictPart(part, owner, boundary[0], boundary[1]);
      if (hasVisiblePairs(subPart.visible)) groups[*boundary].push_back(subPart);
    }
  }
  return groups;
}

/// Estimates the run time of a block of the group.
int64_t estimateCost(const std::vector<PositionedPart>& group, Owner owner) {
  int64_t length = 0;
  for (const Part& part : group) length += owner == Owner::Rows ? part.visible.keys : part.visible.rows;
  return length;
}

/// Appends the parts of a tile for some slices.
void addParts(const Tile& tile, const std::vector<Slice>& slices, std::vector<PositionedPart>& parts) {
  int64_t row = 0;
  for (const Span& rows : tile.q) {
    int64_t key = 0;
    for (const Span& keys : tile.k) {
      for (const Slice& slice : slices) {
        if (const std::optional<PositionedPart> part = makePart({rows, keys, row, key}, slice)) parts.push_back(*part);
      }
      key += keys.length;
    }
    row += rows.length;
  }
}

}  // namespace

TileParts makeParts(const Tile& tile, const Range& batches) {
  const std::span<const std::vector<Slice>> samples = selectSampleMasks(tile, batches.first, batches.count);
  const bool areMasksEqual = std::all_of(samples.begin(), samples.end(),
                                         [&](const auto& mask) { return areSlicesEqual(mask, samples.front()); });
  TileParts tileParts{std::vector<std::vector<PositionedPart>>(areMasksEqual ? 1 : samples.size()),
                      areMasksEqual ? static_cast<unsigned>(batches.count) : 1};
  for (size_t i = 0; i < tileParts.samples.size(); i++) {
    addParts(tile, tile.mask, tileParts.samples[i]);
    if (!samples.empty()) addParts(tile, samples[i], tileParts.samples[i]);
  }
  return tileParts;
}

std::vector<PartLaunch> makeLaunches(const TileParts& tile, Owner owner, int ownTileLength) {
  std::vector<PartLaunch> launches;
  for (size_t batch = 0; batch < tile.samples.size(); batch++) {
    std::vector<std::vector<PositionedPart>> groups;
    for (auto& [first, group] : groupParts(tile.samples[batch], owner)) groups.push_back(std::move(group));
    std::stable_sort(groups.begin(), groups.end(),
                     [&](const auto& a, const auto& b) { return estimateCost(a, owner) > estimateCost(b, owner); });
    bool isLaunchFull = true;  // whether the last launch is full or belongs to another batch element
    for (const std::vector<PositionedPart>& group : groups) {
      const auto blocks =
          static_cast<unsigned>((partExtent(group[0], owner).length + ownTileLength - 1) / ownTileLength);
      bool isNew = true;  // the group has no blocks in this launch yet
      for (PositionedPart part : group) {
        if (isLaunchFull) {
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
        isLaunchFull = launch.parts.count == kMaxParts;
      }
    }
  }
  return launches;
}

}  // namespace mosaic::cuda
