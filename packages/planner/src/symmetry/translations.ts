import type { Coordinate } from "@mosaic/core";

/**
 * One digit of a rank's number, which is Σ value · stride: a mesh axis, or one of the two dimensions of a grid that a backend
 * lays out along an axis. Translations add multiples of `step` to it, modulo `length`.
 */
export interface RankDigit {
  readonly axis: string;
  readonly stride: number;
  readonly length: number;
  /** A divisor of the length; the length itself where ranks that differ in this digit are in classes of their own. */
  readonly step: number;
}

/**
 * A commutative group of permutations of ranks: translations of a torus. It acts freely, so that the ranks fall into classes
 * of one size, and each has exactly one translation that takes the least rank of its class, the representative, to it. A
 * translation is written as the rank that it takes rank 0 to.
 */
export class Translations {
  readonly digits: readonly RankDigit[];
  /** All ranks. */
  readonly ranks: number;
  /** Translations, which are as many as the ranks of a class. */
  readonly order: number;
  /** Those digits that move. */
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

  /** How many classes there are. */
  get classes(): number {
    return this.ranks / this.order;
  }

  /** The translation that takes the representative of a rank's class to the rank. */
  translationTo(rank: number): number {
    let translation = 0;
    for (const { stride, length, step } of this.#translatedDigits) {
      const value = Math.floor(rank / stride) % length;
      translation += (value - (value % step)) * stride;
    }
    return translation;
  }

  /** The least rank of a rank's class. */
  representative(rank: number): number {
    return rank - this.translationTo(rank);
  }

  /** Where a translation takes a rank. */
  apply(translation: number, rank: number): number {
    let translatedRank = rank;
    for (const { stride, length } of this.#translatedDigits) {
      const shift = Math.floor(translation / stride) % length;
      const value = Math.floor(rank / stride) % length;
      translatedRank += (value + shift < length ? shift : shift - length) * stride;
    }
    return translatedRank;
  }

  /** What undoes a translation. */
  inverse(translation: number): number {
    let inverse = 0;
    for (const { stride, length } of this.#translatedDigits) {
      const shift = Math.floor(translation / stride) % length;
      if (shift > 0) inverse += (length - shift) * stride;
    }
    return inverse;
  }

  /** A rank as the representative of `of`'s class has it: moved back by the translation that leads to `of`. */
  relativeRank(reference: number, rank: number): number {
    return this.apply(this.inverse(this.translationTo(reference)), rank);
  }

  /** The representatives, in order. */
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

  /** All translations: where they take rank 0, from 0 on. */
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
 * Whether translations take nodes to nodes, and each but the one that moves nothing takes every node to another: ranks of one
 * class then have the same place in different nodes, and the representatives are the ranks of whole nodes.
 */
export function preservesNodes({ digits }: Translations, ranksPerNode: number): boolean {
  return digits.every((digit) => digit.step === digit.length || movesByWholeNodes(digit, ranksPerNode));
}

/** Whether steps of a digit lead from node to node, and so does its wrapping around. */
export function movesByWholeNodes({ stride, length, step }: RankDigit, ranksPerNode: number): boolean {
  return (step * stride) % ranksPerNode === 0 && (length * stride) % ranksPerNode === 0;
}

/** Each mesh axis a digit, none of which moves: every rank stands for itself. */
export function identityTranslations(mesh: Coordinate): Translations {
  const digits = meshDigits(mesh).map((digit) => ({ ...digit, step: digit.length }));
  return new Translations(digits, meshSize(mesh));
}

/** The axes of a mesh as digits of its ranks' numbers, each of which may move by one. */
export function meshDigits(mesh: Coordinate): RankDigit[] {
  let stride = meshSize(mesh);
  return Object.entries(mesh).map(([axis, length]) => {
    stride /= length;
    return { axis, stride, length, step: 1 };
  });
}

/** The number of ranks of a mesh. */
export function meshSize(mesh: Coordinate): number {
  return Object.values(mesh).reduce((product, length) => product * length, 1);
}

/** How translations of ranks move shards, or sequences, whose numbers have some of the mesh's axes as digits. */
export class GroupAction {
  readonly #digits: readonly { readonly meshStride: number; readonly groupStride: number; readonly length: number }[];

  /** `axes`: those of the numbers, outermost first. */
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

  /** Where a translation takes a number. */
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

/** Events of ranks that are recorded or replayed only to be compared with the representatives of their classes. */
const MAX_COMPARED_EVENTS = 600_000;
/** Ranks that are compared: at least, and at most. */
const [MIN_COMPARED_RANKS, MAX_COMPARED_RANKS] = [4, 16];

/** Ranks spread over a mesh of so many, as many as can be compared in some seconds if each has so many events. */
export function sampleRanks(size: number, events: number): number[] {
  return spreadRanks(
    size,
    Math.min(MAX_COMPARED_RANKS, Math.max(MIN_COMPARED_RANKS, Math.floor(MAX_COMPARED_EVENTS / events))),
  );
}

/** So many ranks, or all, each as far from those before as can be: multiples of the golden ratio, modulo 1. */
export function spreadRanks(size: number, count: number): number[] {
  if (count >= size) return Array.from({ length: size }, (_, rank) => rank);
  const goldenRatio = (Math.sqrt(5) - 1) / 2;
  return [...new Set(Array.from({ length: count }, (_, i) => Math.floor((((i + 1) * goldenRatio) % 1) * size)))];
}
