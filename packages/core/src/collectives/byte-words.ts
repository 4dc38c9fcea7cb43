import { expectValue } from "../errors.ts";

// Three bytes are encoded as an integer below 2²⁴ in a float32. This is exact on every device, whereas the bit pattern
// of a NaN may change.

/** Number of bytes in one float32. */
export const BYTES_PER_WORD = 3;

/**
 * Encodes bytes as float32 values, to send them in a tensor. Every three bytes are an integer below 2²⁴, which every
 * device copies exactly.
 *
 * @example
 * ```ts
 * import { packBytes, unpackBytes } from "@mosaic/core";
 * const words = packBytes(Uint8Array.of(1, 2, 0, 255)); // => [513, 255]
 * unpackBytes(words, 4); // => [1, 2, 0, 255]
 * ```
 * @returns ⌈bytes / 3⌉ values.
 * @throws OptionError unless `bytes` is a Uint8Array.
 */
export function packBytes(bytes: Uint8Array): Float32Array {
  expectValue("packBytes: bytes", bytes instanceof Uint8Array, "a Uint8Array", bytes);
  const words = new Float32Array(Math.ceil(bytes.length / BYTES_PER_WORD));
  const numFullWords = Math.floor(bytes.length / BYTES_PER_WORD);
  for (let i = 0; i < numFullWords; i++)
    words[i] = bytes[3 * i]! + 256 * bytes[3 * i + 1]! + 65_536 * bytes[3 * i + 2]!;
  if (numFullWords < words.length)
    words[numFullWords] = bytes[3 * numFullWords]! + 256 * (bytes[3 * numFullWords + 1] ?? 0);
  return words;
}

/**
 * Decodes `numBytes` bytes that `packBytes` encoded.
 *
 * @example
 * ```ts
 * import { unpackBytes } from "@mosaic/core";
 * unpackBytes(Float32Array.of(513, 255), 4); // => [1, 2, 0, 255]
 * ```
 * @throws OptionError unless `words` is a Float32Array, and `numBytes` an integer from 0 to 3 · words.length.
 */
export function unpackBytes(words: Float32Array, numBytes: number): Uint8Array {
  expectValue("unpackBytes: words", words instanceof Float32Array, "a Float32Array", words);
  const maxBytes = BYTES_PER_WORD * words.length;
  const isValidLength = Number.isInteger(numBytes) && numBytes >= 0 && numBytes <= maxBytes;
  expectValue("unpackBytes: numBytes", isValidLength, `an integer from 0 to ${maxBytes}`, numBytes);
  const bytes = new Uint8Array(maxBytes);
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    bytes[3 * i] = word & 255;
    bytes[3 * i + 1] = (word >> 8) & 255;
    bytes[3 * i + 2] = word >> 16;
  }
  return bytes.subarray(0, numBytes);
}
