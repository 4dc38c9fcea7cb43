import { dtypeBytes, type DType } from "@mosaic/core";
import { FileError } from "./format.ts";

// Between the bytes of a file and float32. Typed arrays have the machine's byte order, which is little-endian wherever
// Node runs with native addons.

const float = new Float32Array(1);
const word = new Uint32Array(float.buffer);

/**
 * Bytes of a tensor as numbers. Widening is exact; F64 and integers are rounded to float32 where they must be. Throws a
 * FileError, which names the place, for other dtypes.
 */
export function toNumbers(where: string, dtype: string, bytes: Uint8Array<ArrayBuffer>): Float32Array {
  const { buffer, byteOffset, byteLength } = bytes;
  switch (dtype) {
    case "F32":
      return new Float32Array(buffer, byteOffset, byteLength / 4);
    case "BF16":
      return widened(new Uint16Array(buffer, byteOffset, byteLength / 2), fromBfloat16);
    case "F16":
      return widened(new Uint16Array(buffer, byteOffset, byteLength / 2), fromFloat16);
    case "F64":
      return Float32Array.from(new Float64Array(buffer, byteOffset, byteLength / 8));
    case "I64":
      return Float32Array.from(new BigInt64Array(buffer, byteOffset, byteLength / 8), Number);
    case "I32":
      return Float32Array.from(new Int32Array(buffer, byteOffset, byteLength / 4));
    case "U8":
    case "BOOL":
      return Float32Array.from(bytes);
    default:
      throw new FileError({
        where,
        expected: "values of F64, F32, F16, BF16, I64, I32, U8 or BOOL",
        received: dtype,
        remedy: "convert them in the program that wrote the file, or read the tensor's bytes",
      });
  }
}

function widened(halves: Uint16Array, each: (half: number) => number): Float32Array {
  const values = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) values[i] = each(halves[i]!);
  return values;
}

function fromBfloat16(half: number): number {
  word[0] = half << 16;
  return float[0]!;
}

function fromFloat16(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Infinity;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
}

/** Values as bytes, rounded to nearest even where the dtype cannot hold them. */
export function toBytes(dtype: DType, values: Float32Array): Uint8Array {
  if (dtype === "float32") return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const halves = new Uint16Array(values.length);
  const narrow = dtype === "bfloat16" ? toBfloat16 : toFloat16;
  for (let i = 0; i < values.length; i++) halves[i] = narrow(values[i]!);
  return new Uint8Array(halves.buffer, 0, values.length * dtypeBytes[dtype]);
}

function toBfloat16(value: number): number {
  float[0] = value;
  if (Number.isNaN(value)) return (word[0]! >>> 16) | 0x40;
  return (word[0]! + 0x7fff + ((word[0]! >>> 16) & 1)) >>> 16;
}

function toFloat16(value: number): number {
  float[0] = value;
  const sign = (word[0]! >>> 16) & 0x8000;
  if (Number.isNaN(value)) return sign | 0x7e00;
  const size = Math.abs(value);
  if (size >= 65_520) return sign | 0x7c00;
  // 11 significant bits down to 2⁻¹⁴, a spacing of 2⁻²⁴ below; a carry runs into the exponent, as it should.
  const exponent = Math.max(-14, Math.floor(Math.log2(size)));
  return sign | (((exponent + 15) << 10) - 1024 + roundHalfEven(size / 2 ** (exponent - 10)));
}

function roundHalfEven(value: number): number {
  const down = Math.floor(value);
  if (value - down !== 0.5) return Math.round(value);
  return down % 2 === 0 ? down : down + 1;
}
