import { expect, test } from "vitest";
import { identityTranslations } from "../src/symmetry/translations.ts";
import { emptySum, SumTable } from "../src/prove/sums.ts";

test("sums of the same tiles are the same, however many were made between them and whatever their numbers", () => {
  const sums = new SumTable(identityTranslations({ sp: 1 }));
  const chain = (tiles: readonly number[]): number => tiles.reduce((sum, tile) => sums.add(sum, tile), emptySum);
  const first = sums.join(chain([1, 2, 3]), chain([4, 5]));
  expect(sums.join(chain([1, 2, 3]), chain([4, 5]))).toBe(first);
  for (let tile = 6; tile < 100_000; tile++) sums.add(emptySum, tile);
  const again = sums.join(chain([1, 2, 3]), chain([4, 5]));
  expect(sums.areEqualSums(first, again)).toBe(true);
  expect(sums.tilesOf(again)).toEqual([1, 2, 3, 4, 5]);
  expect(sums.areEqualSums(first, chain([1, 2, 3, 4]))).toBe(false);
  expect(sums.areEqualSums(first, chain([1, 2, 3, 4, 6]))).toBe(false);
});
