import type { Coordinate } from "@mosaic/core";

/**
 * One digit of a rank's number, where the number is Σ value · stride. A digit is a mesh axis, or one of the two
 * dimensions of a grid that a backend lays out along an axis. Translations add multiples of `step` to it, modulo
 * `length`.
 */
export interface RankDigit {
  readonly axis: string;
  readonly stride: number;
  readonly length: number;
  /** A divisor of the length; the length itself if ranks that differ in this digit are in different classes. */
  readonly step: number;
}

/**
 * A commutative group of permutations of ranks: translations of a torus. The group acts freely. Hence all classes have
 * the same size, and each rank has exactly one translation that maps the least rank of its class, the representative,
 * to it. A translation is written as the rank to which it maps rank 0.
 */
export class Translations {
  readonly digits: readonly RankDigit[];
  /** Number of ranks. */
  readonly ranks: number;
  /** Number of translations, which equals the number of ranks of a class. */
  readonly order: number;
  /** The digits that translations change. */
  readonly #translatedDigits: readonly RankDigit[];

  constructor(digits: readonly RankDigit[], ranks: number) {
    this.digits = digits;
    this.ranks = ranks;
    this.#translatedDigits = digits.filter(({ length, step }) => step < length);
    this.order = this.#translatedDigits.reduce((order, { length, step }) => (order * length) / step, 1);
  }

  /** Whether every rank is in a class of its own. */
  get isIdentity(): boolean {
    return this.#translatedDigits.length === 0;
  }

  /** Number of classes. */
  get classes(): number {
    return this.ranks / this.order;
  }

  /** Returns the translation that maps the representative of a rank's class to the rank. */
  translationTo(rank: number): number {
    let translation = 0;
    for (const { stride, length, step } of this.#translatedDigits) {
      const value = Math.floor(rank / stride) % length;
      translation += (value - (value % step)) * stride;
    }
    return translation;
  }

  /** Returns the least rank of a rank's class. */
  representative(rank: number): number {
    return rank - this.translationTo(rank);
  }

  /** Returns the rank to which a translation maps a rank. */
  apply(translation: number, rank: number): number {
    let translatedRank = rank;
    for (const { stride, length } of this.#translatedDigits) {
      const shift = Math.floor(translation / stride) % length;
      const value = Math.floor(rank / stride) % length;
      translatedRank += (value + shift < length ? shift : shift - length) * stride;
    }
    return translatedRank;
  }

  /** Returns the inverse of a translation. */
  inverse(translation: number): number {
    let inverse = 0;
    for (const { stride, length } of this.#translatedDigits) {
      const shift = Math.floor(translation / stride) % length;
      if (shift > 0) inverse += (length - shift) * stride;
    }
    return inverse;
  }

  /** Returns `rank` moved by the translation that maps `reference` to the representative of its class. */
  relativeRank(reference: number, rank: number): number {
    return this.apply(this.inverse(this.translationTo(reference)), rank);
  }

  /** Returns the representatives in ascending order. */
  representatives(): number[] {
    let representatives = [0];
    for (const { stride, length, step } of this.digits) {
      const numDigitValues = Math.min(length, step);
      representatives = representatives.flatMap((rank) =>
        Array.from({ length: numDigitValues }, (_, value) => rank + value * stride),
      );
    }
    return representatives.toSorted((a, b) => a - b);
  }

  /** Yields all translations, as the ranks to which they map rank 0, beginning with 0. */
  *allTranslations(): Generator<number, void, undefined> {
    const steps = this.#translatedDigits.map(({ stride, length, step }) => ({
      shift: step * stride,
      count: length / step,
    }));
    for (let i = 0; i < this.order; i++) {
      let [remaining, translation] = [i, 0];
      for (const { shift, count } of steps) {
        translation += (remaining % count) * shift;
        remaining = Math.floor(remaining / count);
      }
      yield translation;
    }
  }
}

/**
 * Returns whether translations map nodes to nodes, and all but the identity map every node to a different one. Ranks of
 * one class then have the same local rank on different nodes, and the representatives are the ranks of whole nodes.
 */
export function preservesNodes({ digits }: Translations, ranksPerNode: number): boolean {
  return digits.every((digit) => digit.step === digit.length || movesByWholeNodes(digit, ranksPerNode));
}

/** Whether a step of a digit moves ranks by whole nodes, and so does its wraparound. */
export function movesByWholeNodes({ stride, length, step }: RankDigit, ranksPerNode: number): boolean {
  return (step * stride) % ranksPerNode === 0 && (length * stride) % ranksPerNode === 0;
}

/**
 * Returns translations with a digit for each mesh axis, none of which moves, so that every rank represents only itself.
 */
export function identityTranslations(mesh: Coordinate): Translations {
  const digits = meshDigits(mesh).map((digit) => ({ ...digit, step: digit.length }));
  return new Translations(digits, meshSize(mesh));
}

/** Returns the axes of a mesh as digits of its ranks' numbers, each with a step of 1. */
export function meshDigits(mesh: Coordinate): RankDigit[] {
  let stride = meshSize(mesh);
  return Object.entries(mesh).map(([axis, length]) => {
    stride /= length;
    return { axis, stride, length, step: 1 };
  });
}

/** Returns the number of ranks of a mesh. */
export function meshSize(mesh: Coordinate): number {
  return Object.values(mesh).reduce((product, length) => product * length, 1);
}

/** Applies translations of ranks to shards or sequences whose numbers have some of the mesh's axes as digits. */
export class GroupAction {
  readonly #digits: readonly { readonly meshStride: number; readonly groupStride: number; readonly length: number }[];

  /** `axes` are the digits of these numbers, outermost first. */
  constructor({ digits }: Translations, mesh: Coordinate, axes: readonly string[]) {
    const meshStrides = new Map(meshDigits(mesh).map((digit) => [digit.axis, digit.stride]));
    const lengths = axes.map((axis) => mesh[axis]!);
    const groupStrides = new Map(axes.map((axis, i) => [axis, lengths.slice(i + 1).reduce((a, b) => a * b, 1)]));
    this.#digits = digits
      .filter(({ axis, length, step }) => groupStrides.has(axis) && step < length)
      .map(({ axis, stride, length }) => ({
        meshStride: stride,
        groupStride: (stride / meshStrides.get(axis)!) * groupStrides.get(axis)!,
        length,
      }));
  }

  /** Returns the number to which a translation maps a number. */
  apply(translation: number, index: number): number {
    let translatedIndex = index;
    for (const { meshStride, groupStride, length } of this.#digits) {
      const shift = Math.floor(translation / meshStride) % length;
      const value = Math.floor(index / groupStride) % length;
      translatedIndex += (value + shift < length ? shift : shift - length) * groupStride;
    }
    return translatedIndex;
  }
}

/** Maximum number of events of ranks that are recorded or replayed only for comparison with their representatives. */
const MAX_COMPARED_EVENTS = 600_000;
/** Minimum and maximum number of ranks that are compared. */
const [MIN_COMPARED_RANKS, MAX_COMPARED_RANKS] = [4, 16];

/**
 * Returns ranks spread over a mesh of `size` ranks: as many as can be compared in some seconds if each has `events`
 * events.
 */
export function sampleRanks(size: number, events: number): number[] {
  return spreadRanks(
    size,
    Math.min(MAX_COMPARED_RANKS, Math.max(MIN_COMPARED_RANKS, Math.floor(MAX_COMPARED_EVENTS / events))),
  );
}

/**
 * Returns `count` ranks, or all if there are fewer, each as far from the previous ones as possible: multiples of the
 * golden ratio, modulo 1.
 */
export function spreadRanks(size: number, count: number): number[] {
  if (count >= size) return Array.from({ length: size }, (_, rank) => rank);
  const goldenRatio = (Math.sqrt(5) - 1) / 2;
  return [...new Set(Array.from({ length: count }, (_, i) => Math.floor((((i + 1) * goldenRatio) % 1) * size)))];
}
