// The encoding of a frame's fields: little-endian, with lists and texts preceded by their length. Every read is checked
// against the end of the frame and against limits before anything is allocated.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "control/control_plane.h"

namespace mosaic::control {

static_assert(std::endian::native == std::endian::little, "the wire format requires a little-endian host");

constexpr uint32_t kMaxFrameBytes = 8 << 20;
constexpr uint32_t kMaxRanks = 65536;

/// The received bytes are not valid frames of this protocol.
struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Arbitrary bytes, not text.
struct Value {
  std::string bytes;
};

/// Consecutive ranks.
struct RankRange {
  uint32_t first = 0, count = 0;
};

/// A list of ranks in order, as ranges.
struct RankRanges {
  std::vector<RankRange> ranges;

  static RankRanges of(const std::vector<uint32_t>& ranks) {
    RankRanges ranges;
    for (const uint32_t rank : ranks) {
      RankRange* last = ranges.ranges.empty() ? nullptr : &ranges.ranges.back();
      if (last && last->first + last->count == rank) last->count++;
      else ranges.ranges.push_back({rank, 1});
    }
    return ranges;
  }
  std::vector<uint32_t> ranks() const {
    std::vector<uint32_t> result;
    for (const RankRange& range : ranges) {
      for (uint32_t i = 0; i < range.count; i++) result.push_back(range.first + i);
    }
    return result;
  }
};

template <typename T>
constexpr bool isIntegral = std::is_integral_v<T>;

/// Appends the fields of a frame. Records list their fields in `fields(archive, self)`.
class FieldWriter {
 public:
  explicit FieldWriter(std::string& out) : out_(out) {}

  template <typename T>
  void operator()(const char*, const T& x) {
    write(x);
  }

 private:
  template <typename T>
  void write(const T& x) {
    if constexpr (isIntegral<T>) out_.append(reinterpret_cast<const char*>(&x), sizeof x);
    else T::fields(*this, x);
  }
  void write(const std::string& x) { append(x.data(), truncatedLength(x, kMaxTextBytes)); }
  void write(const Value& x) { append(x.bytes.data(), x.bytes.size()); }
  void write(const RankRanges& x) {
    write(static_cast<uint32_t>(x.ranges.size()));
    for (const RankRange& range : x.ranges) {
      write(range.first);
      write(range.count);
    }
  }
  template <typename T>
  void write(const std::vector<T>& x) {
    write(static_cast<uint32_t>(x.size()));
    for (const T& element : x) write(element);
  }
  void append(const char* data, size_t size) {
    write(static_cast<uint32_t>(size));
    out_.append(data, size);
  }

  std::string& out_;
};

/// Reads fields that FieldWriter wrote. Throws ProtocolError.
class FieldReader {
 public:
  FieldReader(const char* data, size_t size) : next_(data), end_(data + size) {}

  template <typename T>
  void operator()(const char*, T& x) {
    read(x);
  }
  bool isDone() const { return next_ == end_; }

 private:
  template <typename T>
  void read(T& x) {
    if constexpr (isIntegral<T>) std::memcpy(&x, consume(sizeof x), sizeof x);
    else T::fields(*this, x);
  }
  void read(std::string& x) { x = readText(kMaxTextBytes); }
  void read(Value& x) { x.bytes = readText(kMaxValueBytes); }
  void read(RankRanges& x) {
    x.ranges.resize(readCount(2 * sizeof(uint32_t)));
    uint64_t totalRanks = 0;
    for (RankRange& range : x.ranges) {
      read(range.first);
      read(range.count);
      totalRanks += range.count;
      const auto received = [&range] {
        return ", received " + std::to_string(range.count) + " ranks starting at rank " + std::to_string(range.first);
      };
      if (range.count == 0) throw ProtocolError("expected at least 1 rank per range" + received());
      if (uint64_t{range.first} + range.count > kMaxRanks)
        throw ProtocolError("expected ranks below " + std::to_string(kMaxRanks) + received());
      if (totalRanks > kMaxRanks)
        throw ProtocolError("expected at most " + std::to_string(kMaxRanks) + " ranks in total, received " +
                            std::to_string(totalRanks));
    }
  }
  template <typename T>
  void read(std::vector<T>& x) {
    x.resize(readCount(minEncodedBytes<T>()));
    for (T& element : x) read(element);
  }
  std::string readText(uint32_t maxBytes) {
    const uint32_t length = readCount(1);
    if (length > maxBytes) throw ProtocolError("expected a string of at most " + std::to_string(maxBytes) +
                                                 " bytes, received " + std::to_string(length));
    return {consume(length), length};
  }

  /// Returns the minimum number of bytes of an encoded value.
  template <typename T>
  static size_t minEncodedBytes() {
    if constexpr (isIntegral<T>) return sizeof(T);
    else if constexpr (std::is_same_v<T, std::string>) return sizeof(uint32_t);
    else return T::kMinBytes;
  }
  uint32_t readCount(size_t minElementBytes) {
    uint32_t length = 0;
    read(length);
    if (uint64_t{length} * minElementBytes > static_cast<uint64_t>(end_ - next_)) {
      throw ProtocolError("expected a list that fits in its frame, received a list of " + std::to_string(length) +
                          " elements");
    }
    return length;
  }
  const char* consume(size_t length) {
    if (length > static_cast<size_t>(end_ - next_)) {
      throw ProtocolError("truncated frame: expected a field of " + std::to_string(length) + " bytes, received " +
                          std::to_string(end_ - next_) + " bytes");
    }
    return std::exchange(next_, next_ + length);
  }

  const char* next_;
  const char* end_;
};

}  // namespace mosaic::control
