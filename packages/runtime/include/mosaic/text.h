// UTF-8 texts in places of limited size.
#pragma once

#include <cstddef>
#include <string_view>

namespace mosaic {

/// The length of the longest beginning of a text that has at most so many bytes, and whole characters.
inline size_t truncatedLength(std::string_view text, size_t maxBytes) {
  if (text.size() <= maxBytes) return text.size();
  size_t end = maxBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) end--;
  return end;
}

}  // namespace mosaic
