// Formats values as JSON for the output of test programs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include "control/wire.h"

namespace mosaic::test {

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    char escape[8];
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

inline std::string hexOf(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    out += digits;
  }
  return out;
}

/// Prints the fields of a frame in the format of docs/control-plane.md: 64-bit numbers as text, values in hex.
class JsonWriter {
 public:
  template <typename T>
  void operator()(const char* name, const T& x) {
    out_ += (out_.empty() ? "" : ",") + quoted(name) + ":" + json(x);
  }
  std::string object() const { return "{" + out_ + "}"; }

  template <typename T>
  static std::string json(const T& x) {
    if constexpr (std::is_integral_v<T>) {
      return sizeof(T) == 8 ? quoted(std::to_string(x)) : std::to_string(x);
    } else {
      JsonWriter fields;
      T::fields(fields, x);
      return fields.object();
    }
  }
  static std::string json(const std::string& x) { return quoted(x); }
  static std::string json(const control::Value& x) { return quoted(hexOf(x.bytes)); }
  static std::string json(const control::RankRanges& x) {
    std::string out;
    for (const control::RankRange& range : x.ranges) {
      out += (out.empty() ? "[" : ",[") + std::to_string(range.first) + "," + std::to_string(range.count) + "]";
    }
    return "[" + out + "]";
  }
  template <typename T>
  static std::string json(const std::vector<T>& x) {
    std::string out;
    for (const T& each : x) out += (out.empty() ? "" : ",") + json(each);
    return "[" + out + "]";
  }

 private:
  std::string out_;
};

}  // namespace mosaic::test
