import type { Span } from "@mosaic/core";
import type { InternPool } from "../symbolic/intern-pool.ts";
import type { PositionList } from "./positions.ts";

/**
 * Contents of memory, as far as attention is concerned, as one number: the kind, and the sum or the fill. Two places
 * hold the same if their numbers are equal. A proof of a thousand ranks has millions.
 */
export type MemoryValue = number;

/**
 * Inputs; sums over keys, by query (out, lse, dq), and over queries, by key (dk, dv); delta of a sum `out`; a fill; the
 * sink of each head.
 */
const valueKinds = ["q", "k", "v", "dOut", "out", "lse", "dq", "dk", "dv", "delta", "fill", "sink"] as const;
export type ValueKind = (typeof valueKinds)[number];
export type SourceName = "q" | "k" | "v" | "dOut";
export type SumName = "out" | "lse" | "dq" | "dk" | "dv";

const KIND_BITS = 4;
const KIND_MASK = (1 << KIND_BITS) - 1;
const [OUT_CODE, DV_CODE, DELTA_CODE, FILL_CODE] = [4, 8, 9, 10];

const kindCodes = Object.fromEntries(valueKinds.map((kind, code) => [kind, code])) as Readonly<
  Record<ValueKind, number>
>;

/** `payload` is the number of a sum, also for delta; the number of the string of a fill; 0 for inputs. */
export function encodeValue(kind: ValueKind, payload = 0): MemoryValue {
  return (payload << KIND_BITS) | kindCodes[kind];
}

export function decodeKind(value: MemoryValue): ValueKind {
  return valueKinds[value & KIND_MASK]!;
}

export function decodePayload(value: MemoryValue): number {
  return value >> KIND_BITS;
}

export function isInputRow(value: MemoryValue): boolean {
  return (value & KIND_MASK) < OUT_CODE;
}

export function isSum(value: MemoryValue): boolean {
  const code = value & KIND_MASK;
  return code >= OUT_CODE && code <= DV_CODE;
}

export function isDelta(value: MemoryValue): boolean {
  return (value & KIND_MASK) === DELTA_CODE;
}

export function isFill(value: MemoryValue): boolean {
  return (value & KIND_MASK) === FILL_CODE;
}

/** Whether both are of the same kind. */
export function haveSameKind(a: MemoryValue, b: MemoryValue): boolean {
  return (a & KIND_MASK) === (b & KIND_MASK);
}

/** Initial values of sums, as recorded fills: −Infinity for lse, 0 for the others. */
export class InitialValues {
  readonly #zero: MemoryValue;
  readonly #negativeInfinity: MemoryValue;

  constructor(interned: InternPool) {
    this.#zero = encodeValue("fill", interned.stringId("0"));
    this.#negativeInfinity = encodeValue("fill", interned.stringId("-Infinity"));
  }

  /** Whether a value is the initial value of sums of a kind. */
  isInitial(value: MemoryValue, name: ValueKind): boolean {
    return value === (name === "lse" ? this.#negativeInfinity : this.#zero);
  }
}

/** Rows of a sum: queries for out, lse and dq, keys for dk and dv. */
export type RowSide = "queries" | "keys";

/** Returns the rows of a kind: keys for keys, values and their gradients; queries for all others. */
export function valueSide(kind: ValueKind): RowSide {
  return kind === "k" || kind === "v" || kind === "dk" || kind === "dv" ? "keys" : "queries";
}

/** Sequences, heads, columns and positions of rows. The first three are those at the origin. */
export interface Rows {
  readonly batch: number;
  readonly head: number;
  readonly column: number;
  readonly positions: PositionList;
}

/** Describes a value for messages. */
export function describeValue(value: MemoryValue, { strings }: InternPool): string {
  return isFill(value) ? `the constant ${strings[decodePayload(value)]}` : decodeKind(value);
}

/** Formats positions, as in `4..7`, or `0,8..56` for positions with a step. */
export function formatPositions(spans: readonly Span[]): string {
  const texts = spans.map(({ start, length, step }) => {
    if (length <= 1) return length === 1 ? `${start}` : "none";
    return step === 1 ? `${start}..${start + length - 1}` : `${start},${start + step}..${start + (length - 1) * step}`;
  });
  return texts.join(" and ") || "none";
}
