import type { Tensor } from "../tensor.ts";
import type { GradientPart } from "./node.ts";

interface Range {
  readonly start: number;
  readonly end: number;
}

/**
 * The positions of a gradient that no part of it has been written to. Parts that do not overlap, such as those of
 * `split`, are copied, and need neither zeros nor sums.
 */
export class UnwrittenRanges {
  readonly #axis: number;
  #ranges: readonly Range[];

  /** Of a gradient with `length` positions along the axis, all unwritten. */
  constructor(axis: number, length: number) {
    this.#axis = axis;
    this.#ranges = [{ start: 0, end: length }];
  }

  get count(): number {
    return this.#ranges.length;
  }

  /** Removes the positions of a part. Returns false, and removes none, unless all of them are unwritten. */
  remove({ axis, range }: GradientPart): boolean {
    if (axis !== this.#axis || range === null) return false;
    const { start, end } = range;
    if (start === end) return true;
    if (!this.#ranges.some((each) => each.start <= start && end <= each.end)) return false;
    this.#ranges = this.#ranges.flatMap((each) => {
      if (end <= each.start || each.end <= start) return [each];
      const remainingRanges = [
        { start: each.start, end: start },
        { start: end, end: each.end },
      ];
      return remainingRanges.filter((remaining) => remaining.start < remaining.end);
    });
    return true;
  }

  /** Fills the remaining positions of the gradient with zeros. */
  fillZeros(gradient: Tensor): void {
    if (gradient.size > 0) {
      for (const { start, end } of this.#ranges) {
        using part = gradient.slice(this.#axis, start, end);
        gradient.device.kernels.fill(part, 0);
      }
    }
    this.#ranges = [];
  }
}
