import { type Events, lowerBound } from "./model.ts";

/** A range of time, `pixels` wide. */
export interface TimeWindow {
  readonly start: number;
  readonly end: number;
  readonly pixels: number;
}

/** Which events are drawn in a lane, and how. */
export interface LanePaint {
  /** By kind: the number of its style, or −1 if it is not drawn. */
  readonly styleIndexByKind: Int16Array;
  /** Weight of an event: 1, or a share of it if several ranks are drawn as one row. */
  readonly weight: number;
}

/**
 * The share of each pixel's time that events of each style take. An event shorter than a pixel counts with its part of
 * it, so that a million of them appear as busy as they were. The cost of an event does not depend on its length,
 * because differences between adjacent pixels are stored, and summed later.
 */
export class Coverage {
  readonly #numPixels: number;
  /** By style: differences, two more than there are pixels. */
  readonly #differences: Float32Array;
  readonly #isStyleUsed: Uint8Array;

  constructor(pixels: number, styles: number) {
    this.#numPixels = pixels;
    this.#differences = new Float32Array(styles * (pixels + 2));
    this.#isStyleUsed = new Uint8Array(styles);
  }

  add(
    { start: starts, end: ends, kind, share, count, longestSeconds }: Events,
    { start, end, pixels }: TimeWindow,
    paint: LanePaint,
  ): void {
    const { styleIndexByKind, weight } = paint;
    const scale = pixels / (end - start);
    const differences = this.#differences;
    for (let i = lowerBound(starts, start - longestSeconds); i < count && starts[i]! < end; i++) {
      const style = styleIndexByKind[kind[i]!]!;
      if (style < 0 || ends[i]! <= start) continue;
      const startPixel = Math.max(0, (starts[i]! - start) * scale);
      const endPixel = Math.min(pixels, (ends[i]! - start) * scale);
      const weightedShare = weight * share[i]!;
      const firstPixel = Math.trunc(startPixel);
      const lastPixel = Math.trunc(endPixel);
      const rowOffset = style * (pixels + 2);
      const [firstPart, lastPart] = [weightedShare * (startPixel - firstPixel), weightedShare * (endPixel - lastPixel)];
      differences[rowOffset + firstPixel]! += weightedShare - firstPart;
      differences[rowOffset + firstPixel + 1]! += firstPart;
      differences[rowOffset + lastPixel]! -= weightedShare - lastPart;
      differences[rowOffset + lastPixel + 1]! -= lastPart;
      this.#isStyleUsed[style] = 1;
    }
  }

  /** Returns the share of each pixel that a style takes. */
  shares(style: number): Float32Array {
    let share = 0;
    const rowOffset = style * (this.#numPixels + 2);
    return Float32Array.from(
      { length: this.#numPixels },
      (_, pixel) => (share += this.#differences[rowOffset + pixel]!),
    );
  }

  /**
   * Draws over a row of pixels, packed as in an image's bytes, from `offset` on, and clears the coverage. `colors` has
   * red, green and blue of each style, from 0 to 255. If concurrent events exceed the whole, they are scaled down to
   * it.
   */
  blend(row: Uint32Array, offset: number, colors: Float32Array): void {
    const usedStyles = Array.from(this.#isStyleUsed.keys()).filter((style) => this.#isStyleUsed[style] === 1);
    const sums = new Float32Array(usedStyles.length);
    const rowOffsets = Int32Array.from(usedStyles, (style) => style * (this.#numPixels + 2));
    let previousColor = -1;
    let blendedColor = 0;
    for (let pixel = 0; pixel < this.#numPixels; pixel++) {
      // Within an event, nothing changes from one pixel to the next.
      let isUnchanged = row[offset + pixel] === previousColor;
      for (let i = 0; i < rowOffsets.length; i++) {
        const difference = this.#differences[rowOffsets[i]! + pixel]!;
        if (difference === 0) continue;
        sums[i]! += difference;
        isUnchanged = false;
      }
      if (!isUnchanged) {
        previousColor = row[offset + pixel]!;
        blendedColor = mixColors(previousColor, sums, usedStyles, colors);
      }
      row[offset + pixel] = blendedColor;
    }
    this.#clear(usedStyles);
  }

  #clear(usedStyles: readonly number[]): void {
    const length = this.#numPixels + 2;
    for (const style of usedStyles) this.#differences.fill(0, style * length, (style + 1) * length);
    this.#isStyleUsed.fill(0);
  }
}

/** Mixes colors by their shares of a pixel. The background has the rest. */
// oxlint-disable-next-line max-params -- called for each pixel: an object would cost more than the sums
function mixColors(background: number, shares: Float32Array, styles: readonly number[], colors: Float32Array): number {
  let totalShare = 0;
  let red = 0;
  let green = 0;
  let blue = 0;
  for (let i = 0; i < shares.length; i++) {
    const share = Math.max(0, shares[i]!);
    const colorOffset = 3 * styles[i]!;
    totalShare += share;
    red += share * colors[colorOffset]!;
    green += share * colors[colorOffset + 1]!;
    blue += share * colors[colorOffset + 2]!;
  }
  if (totalShare < 1e-4) return background;
  const scale = totalShare > 1 ? 1 / totalShare : 1;
  const backgroundShare = Math.max(0, 1 - totalShare);
  const r = (red * scale + (background & 255) * backgroundShare + 0.5) | 0;
  const g = (green * scale + ((background >> 8) & 255) * backgroundShare + 0.5) | 0;
  const b = (blue * scale + ((background >> 16) & 255) * backgroundShare + 0.5) | 0;
  return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
}

/** Packs a color with channels from 0 to 1 into a pixel of an image, on little-endian machines. */
export function packColor([red, green, blue]: readonly [red: number, green: number, blue: number]): number {
  const [r, g, b] = [red, green, blue].map((part) => Math.round(part * 255)) as [number, number, number];
  return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
}
