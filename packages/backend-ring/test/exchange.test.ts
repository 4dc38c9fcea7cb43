import fc from "fast-check";
import { expect, test } from "vitest";
import { type DependencyTable, modulo } from "@mosaic/core/context-parallel";
import { recvPeer, sendPeer } from "../src/exchange.ts";
import { listRanks, createTable } from "./tables.ts";

/** Any dependencies among any number of ranks: nothing but the routes themselves is under test. */
const tables = fc
  .integer({ min: 1, max: 9 })
  .chain((size) =>
    fc
      .array(fc.boolean(), { minLength: size * size, maxLength: size * size })
      .map((needed): DependencyTable => createTable(size, (rank, source) => needed[rank * size + source]!)),
  );

test("keys come once to everyone who needs them, in time, from somebody who has them", () => {
  fc.assert(
    fc.property(tables, (table) => {
      for (const source of listRanks(table.size)) {
        // Ranks that have the chunk in a buffer during each step.
        let holders: number[] = [];
        for (let step = 1; step < table.size; step++) {
          const rank = modulo(source + step, table.size);
          const from = recvPeer(table, rank, step);
          expect(from !== undefined).toBe(table.needsKv(rank, source));
          if (from !== undefined) expect([source, ...holders]).toContain(from);
          holders = from === undefined ? [] : [rank];
        }
      }
    }),
  );
});

test("every contribution reaches home once, and nobody's but those of ranks that see the keys", () => {
  fc.assert(
    fc.property(tables, (table) => {
      for (const home of listRanks(table.size)) {
        const arrived: number[] = [];
        let carried: number[] = [];
        for (let step = 1; step < table.size; step++) {
          const rank = modulo(home + step, table.size);
          const to = sendPeer(table, rank, step);
          expect(to !== undefined).toBe(table.needsKv(rank, home));
          if (to === undefined) continue;
          carried.push(rank);
          if (to !== home) {
            expect(to).toBe(modulo(rank + 1, table.size));
            continue;
          }
          arrived.push(...carried);
          carried = [];
        }
        expect(carried).toEqual([]);
        const seers = listRanks(table.size).filter((rank) => rank !== home && table.needsKv(rank, home));
        expect(arrived.toSorted((a, b) => a - b)).toEqual(seers);
      }
    }),
  );
});

test("a full ring passes everything to the right", () => {
  const table = createTable(5);
  for (let step = 1; step < 5; step++) {
    for (let rank = 0; rank < 5; rank++) {
      expect(recvPeer(table, rank, step)).toBe(modulo(rank - 1, 5));
      expect(sendPeer(table, rank, step)).toBe(modulo(rank + 1, 5));
    }
  }
});
