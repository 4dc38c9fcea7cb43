// Frames between ranks and the hub: a length, a kind, and values in the order in which both sides know them. All ranks
// run the same version on machines of one byte order, so values lie as they do in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace mosaic::nccl {

enum class Frame : uint8_t {
  // From a rank.
  Hello,     // token, rank, size, pid, host, NCCL's version
  Post,      // signature
  Color,     // group, index, color
  Failed,    // code, message
  Ask,       // where everybody is
  Here,      // who asked, Position
  Goodbye,   // what it did last
  // From the hub.
  Welcome,   // pids of all ranks
  Refused,   // code, message
  Died,      // rank
  Left,      // rank, what it did last
  Cause,     // rank, code, message: it failed, and why
  Mismatch,  // group, message
  Needed,    // group, sequence, rank that left and was needed
  Colors,    // group, index, colors
  Where,     // who asks
  Position,  // rank, Position
};

class Writer {
 public:
  explicit Writer(Frame frame) : bytes_(sizeof(uint32_t)) { value(frame); }

  template <typename T>
  Writer& value(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* from = reinterpret_cast<const uint8_t*>(&x);
    bytes_.insert(bytes_.end(), from, from + sizeof x);
    return *this;
  }
  Writer& text(const std::string& x) {
    value(static_cast<uint32_t>(x.size()));
    bytes_.insert(bytes_.end(), x.begin(), x.end());
    return *this;
  }
  template <typename T>
  Writer& list(const std::vector<T>& x) {
    value(static_cast<uint32_t>(x.size()));
    for (const T& each : x) value(each);
    return *this;
  }
  /// The frame, its length in front.
  const std::vector<uint8_t>& done() {
    const auto length = static_cast<uint32_t>(bytes_.size() - sizeof(uint32_t));
    std::memcpy(bytes_.data(), &length, sizeof length);
    return bytes_;
  }

 private:
  std::vector<uint8_t> bytes_;
};

class Reader {
 public:
  Reader(const uint8_t* data, size_t length) : at_(data), end_(data + length) {}

  template <typename T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T x;
    std::memcpy(&x, take(sizeof x), sizeof x);
    return x;
  }
  std::string text() {
    const auto length = value<uint32_t>();
    return {reinterpret_cast<const char*>(take(length)), length};
  }
  template <typename T>
  std::vector<T> list() {
    std::vector<T> x(bounded(value<uint32_t>(), sizeof(T)));
    for (T& each : x) each = value<T>();
    return x;
  }
  /// A count of things of at least `bytes` each, which the frame has room for.
  uint32_t bounded(uint32_t count, size_t bytes) const {
    if (size_t{count} * bytes > static_cast<size_t>(end_ - at_)) throw std::out_of_range("a frame is too short");
    return count;
  }

 private:
  const uint8_t* take(size_t length) {
    if (length > static_cast<size_t>(end_ - at_)) throw std::out_of_range("a frame is too short");
    const uint8_t* taken = at_;
    at_ += length;
    return taken;
  }
  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace mosaic::nccl
