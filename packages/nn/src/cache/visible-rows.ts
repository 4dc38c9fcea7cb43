import { clipKeys, hasDiagonalEnd, hasDiagonalStart, type Slice } from "@mosaic/core";
import type { BlockRows } from "./block-table.ts";

/** Converts the slices of a mask, whose keys are positions, to slices whose keys are rows of a rank's memory. */
export function visibleRowSlices(mask: readonly Slice[], blocks: readonly BlockRows[]): Slice[] {
  const rowSlices: Slice[] = [];
  for (const slice of mask) {
    const lastRowOffset = slice.q1 - slice.q0 - 1;
    // Keys [firstKey, endKey) are visible to every query of the slice.
    const firstKey = slice.k0 + (hasDiagonalStart(slice.type) ? lastRowOffset : 0);
    const endKey = slice.k1 - (hasDiagonalEnd(slice.type) ? lastRowOffset : 0);
    // Adjacent blocks are joined to one slice for the kernel.
    let currentRun = { row: 0, end: 0 };
    const endRun = (): void => {
      if (currentRun.row < currentRun.end)
        rowSlices.push({ q0: slice.q0, q1: slice.q1, k0: currentRun.row, k1: currentRun.end, type: "full" });
    };
    for (const { position, row, length } of blocks) {
      const end = position + length;
      if (end <= slice.k0) continue;
      if (position >= slice.k1) break;
      if (position >= firstKey && end <= endKey) {
        if (row !== currentRun.end) {
          endRun();
          currentRun = { row, end: row };
        }
        currentRun.end += length;
      } else
        for (const clippedSlice of clipKeys(slice, position, end))
          rowSlices.push(shiftKeys(clippedSlice, row - position));
    }
    endRun();
  }
  return rowSlices;
}

export function shiftKeys(slice: Slice, offset: number): Slice {
  return { ...slice, k0: slice.k0 + offset, k1: slice.k1 + offset };
}
