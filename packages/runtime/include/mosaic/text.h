// Truncation of UTF-8 text to buffers of limited size.
#pragma once

#include <cstddef>
#include <string_view>

namespace mosaic {

/// Returns the length of the longest prefix that has at most `maxBytes` bytes and does not end within a character.
inline size_t truncatedLength(std::string_view text, size_t maxBytes) {
  if (text.size() <= maxBytes) return text.size();
  size_t end = maxBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) end--;
  return end;
}

}  // namespace mosaic
