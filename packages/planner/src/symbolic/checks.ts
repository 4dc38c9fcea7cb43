import { demand } from "../options.ts";
import { type Coordinate, OptionError, ShapeError, option } from "@mosaic/core";

// What groups of real devices refuse is refused here too: a record of it could be proved, and would run nowhere.

/** A mesh of whole ranks, whose axes keep the order in which they are named. */
export function checkMesh(where: string, mesh: Coordinate): void {
  demand(`${where}: mesh`, option.meshShape().accepts(mesh), "lengths of axes by name", mesh);
  const isLength = (length: number): boolean => Number.isSafeInteger(length) && length > 0;
  const fits = Object.entries(mesh).every(([axis, length]) => /^[A-Za-z_]/.test(axis) && isLength(length));
  if (fits) return;
  throw new OptionError({
    where,
    expected: "a mesh of axes whose names begin with a letter, each a whole number of ranks ≥ 1",
    received: JSON.stringify(mesh),
  });
}

/** Tapes hold numbers of 32 bits. */
const maxCount = 2 ** 31 - 1;

/** Throws a ShapeError if a count is larger than a tape can hold. */
export function checkCounts(where: string, counts: readonly number[]): void {
  const most = counts.reduce((a, b) => Math.max(a, b), 0);
  if (most <= maxCount) return;
  throw new ShapeError({ where, expected: `shares of at most ${maxCount} elements`, received: String(most) });
}
