import { expect, test } from "vitest";
import { identityTranslations } from "../src/symmetry/translations.ts";
import { EMPTY_SUM, SumTable } from "../src/prove/sums.ts";

test("sums of the same tiles are equal, even if many other sums are created in between", () => {
  const sums = new SumTable(identityTranslations({ sp: 1 }));
  const addTiles = (tiles: readonly number[]): number => tiles.reduce((sum, tile) => sums.add(sum, tile), EMPTY_SUM);
  const firstSum = sums.join(addTiles([1, 2, 3]), addTiles([4, 5]));
  expect(sums.join(addTiles([1, 2, 3]), addTiles([4, 5]))).toBe(firstSum);
  for (let tile = 6; tile < 100_000; tile++) sums.add(EMPTY_SUM, tile);
  const repeatedSum = sums.join(addTiles([1, 2, 3]), addTiles([4, 5]));
  expect(sums.areEqualSums(firstSum, repeatedSum)).toBe(true);
  expect(sums.listTiles(repeatedSum)).toEqual([1, 2, 3, 4, 5]);
  expect(sums.areEqualSums(firstSum, addTiles([1, 2, 3, 4]))).toBe(false);
  expect(sums.areEqualSums(firstSum, addTiles([1, 2, 3, 4, 6]))).toBe(false);
});
