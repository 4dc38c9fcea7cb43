import { expect, test } from "vitest";
import { hierarchicalRoute } from "../../src/collectives/cast-route.ts";
import type { GroupCastPlan, RowRange } from "../../src/collectives/process-group.ts";

function rowsIn(ranges: readonly RowRange[]): number[] {
  return ranges.flatMap(({ start, length }) => Array.from({ length }, (_, i) => start + i));
}

/** Ranges that follow from sender and receiver: some empty, several that overlap between receivers. */
function planOf(size: number, seed: number): GroupCastPlan {
  const ranges = (sender: number, receiver: number): RowRange[] => {
    if (sender === receiver) return [];
    const all = Array.from({ length: 5 }, (_, i) => ({ start: 9 * i, length: 1 + ((sender + 3 * receiver + i) % 8) }));
    return all.filter((_, i) => (7 * sender + 5 * receiver + 3 * i + seed) % 4 !== 0);
  };
  return { size, ranges };
}

const hostsOf: readonly (readonly number[])[] = [
  [0, 1],
  [0, 0, 1, 1],
  [0, 1, 0, 1, 2],
  [0, 0, 0, 1, 1, 1, 1, 2],
  [0, 1, 2, 3],
];

test.each(hostsOf)("a row crosses to a host once, and reaches all who require it: hosts %j", (...hosts) => {
  for (let seed = 0; seed < 4; seed++) {
    const plan = planOf(hosts.length, seed);
    const routes = hosts.map((_, rank) => hierarchicalRoute(plan, { rank, hosts })!);
    for (const [sender, { sent }] of routes.entries()) {
      // What is in the hands of a rank after the first hop, in order, and what it keeps and passes on.
      const reached = hosts.map(() => [] as number[]);
      for (const [to, ranges] of sent.entries()) {
        const rows = rowsIn(ranges);
        expect(routes[to]!.received[sender]).toBe(rows.length);
        if (rows.length === 0) continue;
        const kept = routes[to]!.kept[sender];
        expect(reached[to]).toEqual([]);
        reached[to] = kept ? rowsIn(kept).map((i) => rows[i]!) : rows;
        for (const forward of routes[to]!.forwards) {
          if (forward.sender !== sender) continue;
          expect(hosts[forward.to]).toBe(hosts[to]);
          expect(reached[forward.to]).toEqual([]);
          reached[forward.to] = rowsIn(forward.ranges).map((i) => rows[i]!);
          const incoming = routes[forward.to]!.forwarded.filter((each) => each.sender === sender);
          expect(incoming).toEqual([{ from: to, sender, rows: rowsIn(forward.ranges).length }]);
        }
      }
      expect(reached).toEqual(hosts.map((_, receiver) => rowsIn(plan.ranges(sender, receiver))));
      for (const host of new Set(hosts)) {
        if (host === hosts[sender]) continue;
        const members = hosts.flatMap((each, rank) => (each === host ? [rank] : []));
        const crossing = members.flatMap((member) => rowsIn(sent[member]!));
        const required = new Set(members.flatMap((member) => rowsIn(plan.ranges(sender, member))));
        expect(crossing.toSorted((a, b) => a - b)).toEqual([...required].toSorted((a, b) => a - b));
      }
    }
  }
});

test("one host, or none known: no route of its own", () => {
  expect(hierarchicalRoute(planOf(3, 0), { rank: 1, hosts: [4, 4, 4] })).toBeUndefined();
  expect(hierarchicalRoute(planOf(3, 0), { rank: 1 })).toBeUndefined();
});
