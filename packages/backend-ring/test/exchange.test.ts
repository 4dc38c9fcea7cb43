import fc from "fast-check";
import { expect, test } from "vitest";
import { type DependencyTable, modulo } from "@mosaic/core/context-parallel";
import { isSent, maxChunkRows, recvPeer, sendPeer } from "../src/exchange.ts";
import { listRanks, createTable } from "./tables.ts";

/** Arbitrary dependencies among any number of ranks. Only the routes are tested. */
const tables = fc
  .integer({ min: 1, max: 9 })
  .chain((size) =>
    fc
      .array(fc.boolean(), { minLength: size * size, maxLength: size * size })
      .map((needed): DependencyTable => createTable(size, (rank, source) => needed[rank * size + source]!)),
  );

test("each rank that requires a chunk of keys receives it once, from a rank that holds it", () => {
  fc.assert(
    fc.property(tables, (table) => {
      for (const source of listRanks(table.size)) {
        // Ranks that have the chunk in a buffer during the previous step.
        let holders: number[] = [];
        for (let step = 1; step < table.size; step++) {
          const rank = modulo(source + step, table.size);
          const sender = recvPeer(table, rank, step);
          expect(sender !== undefined).toBe(table.needsKv(rank, source));
          if (sender !== undefined) expect([source, ...holders]).toContain(sender);
          holders = sender === undefined ? [] : [rank];
        }
      }
    }),
  );
});

test("each gradient contribution reaches its owner once, and only from ranks that require the keys", () => {
  fc.assert(
    fc.property(tables, (table) => {
      for (const owner of listRanks(table.size)) {
        const deliveredRanks: number[] = [];
        let carriedRanks: number[] = [];
        for (let step = 1; step < table.size; step++) {
          const rank = modulo(owner + step, table.size);
          const receiver = sendPeer(table, rank, step);
          expect(receiver !== undefined).toBe(table.needsKv(rank, owner));
          if (receiver === undefined) continue;
          carriedRanks.push(rank);
          if (receiver !== owner) {
            expect(receiver).toBe(modulo(rank + 1, table.size));
            continue;
          }
          deliveredRanks.push(...carriedRanks);
          carriedRanks = [];
        }
        expect(carriedRanks).toEqual([]);
        const requiringRanks = listRanks(table.size).filter((rank) => rank !== owner && table.needsKv(rank, owner));
        expect(deliveredRanks.toSorted((a, b) => a - b)).toEqual(requiringRanks);
      }
    }),
  );
});

test("a full ring sends keys and gradients to the next rank at every step", () => {
  const table = createTable(5);
  for (let step = 1; step < 5; step++) {
    for (let rank = 0; rank < 5; rank++) {
      expect(recvPeer(table, rank, step)).toBe(modulo(rank - 1, 5));
      expect(sendPeer(table, rank, step)).toBe(modulo(rank + 1, 5));
    }
  }
});

test("a chunk is sent exactly if another rank requires it, and buffers hold the longest chunk of a rank", () => {
  fc.assert(
    fc.property(tables, (dependencies) => {
      const table = { ...dependencies, keyRows: (rank: number) => 1 + ((3 * rank) % 7) };
      for (const rank of listRanks(table.size)) {
        const peers = listRanks(table.size).filter((peer) => peer !== rank);
        expect(isSent(table, rank)).toBe(peers.some((peer) => table.needsKv(peer, rank)));
        const sources = listRanks(table.size).filter((source) => source === rank || table.needsCompute(rank, source));
        expect(maxChunkRows(table, rank)).toBe(Math.max(...sources.map(table.keyRows)));
      }
    }),
  );
});
