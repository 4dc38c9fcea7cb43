/** Maximum number of bytes of a character in UTF-8. */
const MAX_CHARACTER_BYTES = 4;

/**
 * Returns the longest prefix of UTF-8 text that has at most `maxBytes` bytes and ends at a character boundary. If the
 * text is not valid UTF-8, the prefix may end anywhere.
 */
export function truncateUtf8(text: Buffer, maxBytes: number): Buffer {
  if (text.length <= maxBytes) return text;
  let end = maxBytes;
  // Continuation bytes are 10xxxxxx.
  while (end > maxBytes - MAX_CHARACTER_BYTES && ((text[end] ?? 0) & 0xc0) === 0x80) end--;
  return text.subarray(0, end);
}
