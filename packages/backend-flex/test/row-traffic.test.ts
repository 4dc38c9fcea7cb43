import { type Mask, masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { evaluateAssignment } from "../src/dispatch/assignment.ts";
import { createProblem } from "../src/dispatch/dispatch.ts";
import { RowTrafficCounter } from "../src/dispatch/row-traffic.ts";

const LENGTH = 1000;
const packedMask = masks.documents([90, 310, 7, 43, 250, 300], "causal");
const createTestProblem = (mask: Mask | readonly Mask[], isSelfAttention = true) =>
  createProblem({ where: "test", mask, queries: LENGTH, keys: LENGTH, ranks: 6, chunkSize: 20, isSelfAttention });

test.each([
  ["packed documents", packedMask, true, 1],
  ["a window, with separate keys", masks.slidingWindow(130), false, 1],
  ["two masks", [packedMask, masks.slidingWindow(70)], true, 1],
  ["hosts of two ranks", packedMask, true, 2],
] as const)(
  "proposed exchanges have the rows of the exchanged assignment: %s",
  (_, mask, isSelfAttention, groupSize) => {
    const problem = createTestProblem(mask, isSelfAttention);
    const { queryChunks, chunks, ranks } = problem;
    const groupProblem = { ...problem, ranks: ranks / groupSize };
    const assignment = Int32Array.from({ length: chunks }, (__, chunk) => (chunk * 7) % ranks);
    const evaluate = () => {
      const { receivedRows, sentRows } = evaluateAssignment(
        groupProblem,
        assignment.map((rank) => Math.floor(rank / groupSize)),
      );
      return { receivedRows, sentRows };
    };
    const rows = evaluate();
    const computePotential = (_group: number, receivedRows: number, sentRows: number) =>
      receivedRows + 3 * Math.max(0, sentRows - 400) ** 2;
    const counter = new RowTrafficCounter(problem, assignment, {
      rows,
      numGroups: ranks / groupSize,
      groupSize,
      potential: computePotential,
      rowCost: 1,
    });
    counter.initializePotentials();
    const sumPotential = () => {
      const { receivedRows, sentRows } = evaluate();
      return receivedRows.reduce(
        (sum, received, group) => sum + computePotential(group, received, sentRows[group]!),
        0,
      );
    };
    let numExchanges = 0;
    let numExactBounds = 0;
    for (let i = 0; i < 300; i++) {
      const isKey = !isSelfAttention && i % 2 === 1;
      const [first, count] = isKey ? [queryChunks, chunks - queryChunks] : [0, queryChunks];
      const [a, b] = [first + ((i * 13) % count), first + ((i * 29 + 5) % count)];
      const [fromRank, toRank] = [assignment[a]!, assignment[b]!];
      if (fromRank === toRank) continue;
      const previousPotential = sumPotential();
      const previousRows = evaluate();
      counter.propose(a, b, fromRank, toRank);
      const minRowCostChange = counter.minRowCostChange();
      const minPotentialChange = counter.minPotentialChange();
      const potentialChange = counter.potentialChange();
      [assignment[a], assignment[b]] = [toRank, fromRank];
      expect(potentialChange).toBe(sumPotential() - previousPotential);
      expect(minPotentialChange).toBeLessThanOrEqual(potentialChange);
      expect(minRowCostChange).toBeLessThanOrEqual(minPotentialChange);
      if (minPotentialChange === potentialChange) numExactBounds++;
      // A proposal changes no counts.
      expect({ receivedRows: counter.receivedRows, sentRows: counter.sentRows }).toEqual(previousRows);
      if (i % 3 === 0) {
        counter.commit(a, b);
        numExchanges++;
      } else [assignment[a], assignment[b]] = [fromRank, toRank];
      expect({ receivedRows: counter.receivedRows, sentRows: counter.sentRows }).toEqual(evaluate());
    }
    expect(numExactBounds).toBeGreaterThan(0);
    expect(numExchanges).toBeGreaterThan(50);
  },
);
