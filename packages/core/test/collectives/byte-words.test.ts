import { expect, test } from "vitest";
import { OptionError, packBytes, unpackBytes } from "../../src/index.ts";

test("unpackBytes returns the bytes that packBytes encoded, for every remainder of three", () => {
  for (let length = 0; length < 20; length++) {
    const bytes = Uint8Array.from({ length }, (_, i) => (255 - 37 * i) & 255);
    const words = packBytes(bytes);
    expect(words.length).toBe(Math.ceil(length / 3));
    expect(words.every((word) => Number.isInteger(word) && word >= 0 && word < 2 ** 24)).toBe(true);
    expect(unpackBytes(words, length)).toEqual(bytes);
  }
  expect(packBytes(Uint8Array.of(255, 255, 255))).toEqual(Float32Array.of(2 ** 24 - 1));
});

test("invalid arguments are rejected", () => {
  expect(() => packBytes([1] as unknown as Uint8Array)).toThrow(OptionError);
  expect(() => unpackBytes([1] as unknown as Float32Array, 1)).toThrow(OptionError);
  for (const numBytes of [-1, 4, 0.5, Number.NaN])
    expect(() => unpackBytes(new Float32Array(1), numBytes)).toThrow(/numBytes: expected an integer from 0 to 3/);
});
