import { masks } from "@mosaic/core";
import { prove, record } from "@mosaic/planner";
import { expect, test } from "vitest";
import { createCandidates, listDivisors } from "../src/plan/candidates.ts";
import { resolveJob } from "../src/plan/job.ts";

const shape = { tokens: 64, numHeads: 6, numKvHeads: 3, headDim: 8, mask: masks.causal() };

function listNames(nodes: number, gpusPerNode: number, numHeads = 6): readonly string[] {
  const options = { ...shape, numHeads, numKvHeads: numHeads / 2, nodes, gpusPerNode };
  return createCandidates(resolveJob("test", options), options).map(({ name }) => name);
}

test("a single rank has only the local backend", () => {
  expect(listNames(1, 1)).toEqual(["local"]);
});

test("one node has rings, flex, all grids in both forms, ulysses, and ulysses around each of them", () => {
  expect(listNames(1, 4)).toEqual([
    "ring 4",
    "flex 4",
    "mesh2d 1·4 fused",
    "mesh2d 1·4 overlapped",
    "mesh2d 2·2 fused",
    "mesh2d 2·2 overlapped",
    "mesh2d 4·1 fused",
    "mesh2d 4·1 overlapped",
    "ulysses 4",
    "ulysses 2 × ring 2",
    "ulysses 2 × flex 2",
    "ulysses 2 × mesh2d 1·2 fused",
    "ulysses 2 × mesh2d 1·2 overlapped",
    "ulysses 2 × mesh2d 2·1 fused",
    "ulysses 2 × mesh2d 2·1 overlapped",
  ]);
});

test("ulysses is not offered for more ranks than there are heads", () => {
  expect(listNames(1, 8, 4)).not.toContain("ulysses 8");
  expect(listNames(1, 8, 4)).toContain("ulysses 4 × ring 2");
});

test("several nodes also have rings between them and grids with a channel for each kind of link", () => {
  const names = listNames(2, 4);
  for (const name of [
    "ring 2 × ring 4",
    "ring 2 × flex 4",
    "ring 2 × mesh2d 2·2 fused",
    "ulysses 2 × ring 2 × ring 2",
  ]) {
    expect(names).toContain(name);
  }
  expect(names).toContain("mesh2d 4·2 overlapped, 2 channels");
  expect(names.filter((name) => name === "ulysses 2 × ring 4")).toHaveLength(2);
  // Ulysses over all ranks of a node leaves no ranks for a level below it.
  expect(listNames(2, 4, 8).filter((name) => / 1( |$)|1·1/.test(name))).toEqual([]);
});

test("on many ranks, grids that send much more than the best are omitted", () => {
  const names = listNames(8, 8);
  expect(names).toContain("mesh2d 16·4 overlapped");
  expect(names).not.toContain("mesh2d 1·64 overlapped");
  expect(names.length).toBeLessThan(110);
});

test("listDivisors returns all divisors in ascending order", () => {
  expect(listDivisors(12)).toEqual([1, 2, 3, 4, 6, 12]);
});

test.each([
  [1, 6],
  [2, 4],
])("every candidate on %i × %i ranks is proved correct", (nodes, gpusPerNode) => {
  const options = { ...shape, nodes, gpusPerNode };
  const job = resolveJob("test", options);
  const candidates = createCandidates(job, options);
  expect(candidates.length).toBeGreaterThanOrEqual(20);
  for (const { name, backend, mesh } of candidates) {
    expect(prove(record({ ...job.shape, backend, mesh })).violations, name).toEqual([]);
  }
});
