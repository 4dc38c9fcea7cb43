import { type DType, dtypeBytes, type Mask, masks, type PlacementName } from "@mosaic/core";
import { UsageError } from "./usage-error.ts";

// Each reads what was written behind an option, or says what would be legal there.

const units: Readonly<Record<string, number>> = { "": 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 };

/** 4096, 128k, 1M: k, M and G are powers of 1024, as lengths of sequences are. */
export function countOf(name: string, text: string): number {
  const match = /^(\d+(?:\.\d+)?)([kmg]?)$/i.exec(text.replaceAll("_", ""));
  const value = match ? Number(match[1]) * units[match[2]!.toLowerCase()]! : Number.NaN;
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new UsageError(`--${name}: expected a whole number ≥ 1, such as 4096, 128k or 1M, received "${text}"`);
}

const sizes: Readonly<Record<string, number>> = {
  B: 1,
  kB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
};

/** 80GB, 512MiB. */
export function bytesOf(name: string, text: string): number {
  const match = /^(\d+(?:\.\d+)?) ?([kKMGT]?i?B)?$/.exec(text);
  const value = match ? Number(match[1]) * (sizes[match[2] ?? "B"] ?? Number.NaN) : Number.NaN;
  if (value > 0 && Number.isFinite(value)) return value;
  throw new UsageError(`--${name}: expected an amount of memory, such as 80GB or 512MiB, received "${text}"`);
}

const { full, causal, inverseCausal, bidirectionalCausal, slidingWindow, prefix } = masks;
const plainMasks: Readonly<Record<string, () => Mask>> = { full, causal, inverseCausal, bidirectionalCausal };
const sizedMasks: Readonly<Record<string, (size: number) => Mask>> = { slidingWindow, prefix };

/** causal, slidingWindow:4096. */
export function maskOf(text: string): Mask {
  const [name, size, ...more] = text.split(":") as [string, ...string[]];
  if (size === undefined && Object.hasOwn(plainMasks, name)) return plainMasks[name]!();
  if (size !== undefined && more.length === 0 && Object.hasOwn(sizedMasks, name)) {
    return sizedMasks[name]!(countOf(`mask ${name}`, size));
  }
  throw new UsageError(`--mask: expected one of ${maskNames()}, received "${text}"`);
}

export function maskNames(): string {
  return [...Object.keys(plainMasks), ...Object.keys(sizedMasks).map((name) => `${name}:N`)].join(", ");
}

export const dtypes: readonly DType[] = Object.keys(dtypeBytes) as DType[];
export const placements: readonly PlacementName[] = ["contiguous", "zigzag", "striped"];

export function oneOf<T extends string>(name: string, text: string, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === text);
  if (found !== undefined) return found;
  throw new UsageError(`--${name}: expected one of ${choices.join(", ")}, received "${text}"`);
}
