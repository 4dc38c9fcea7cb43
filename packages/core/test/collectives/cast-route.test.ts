import { expect, test } from "vitest";
import { rankGroupCast } from "../../src/collectives/cast-plan.ts";
import {
  groupCastMessageRows,
  type GroupCastRoute,
  directRoute,
  hierarchicalRoute,
} from "../../src/collectives/cast-route.ts";
import type { GroupCastPlan, RowRange } from "../../src/collectives/process-group.ts";

function rowsIn(ranges: readonly RowRange[]): number[] {
  return ranges.flatMap(({ start, length }) => Array.from({ length }, (_, i) => start + i));
}

/** Ranges that follow from sender and receiver: some empty, some that touch, several that overlap between receivers. */
function planOf(size: number, seed: number): GroupCastPlan {
  const ranges = (sender: number, receiver: number): RowRange[] => {
    if (sender === receiver) return [];
    const all = Array.from({ length: 5 }, (_, i) => ({ start: 9 * i, length: 1 + ((sender + 3 * receiver + i) % 9) }));
    return all.filter((_, i) => (7 * sender + 5 * receiver + 3 * i + seed) % 4 !== 0);
  };
  return { size, ranges };
}

const routeOf = (plan: GroupCastPlan, hosts: readonly number[], rank: number): GroupCastRoute | undefined =>
  hierarchicalRoute(plan, rankGroupCast("test", plan, { rank, size: hosts.length }), { rank, hosts });

/** A message of a tensor of one number a row: rows of a sender, by their number. */
interface Message {
  readonly from: number;
  readonly to: number;
  readonly sender: number;
  readonly rows: readonly number[];
}

/** All messages, hop by hop, and what each rank has in its `out` when all have arrived: [sender, row]. */
function run(routes: readonly GroupCastRoute[]) {
  const hops: [Message[], Message[]] = [[], []];
  const out = routes.map((): (readonly [number, number])[] => []);
  const take = (hop: Message[], from: number, to: number): Message => {
    const at = hop.findIndex((each) => each.from === from && each.to === to);
    expect(at).toBeGreaterThanOrEqual(0);
    return hop.splice(at, 1)[0]!;
  };
  const place = (rank: number, places: readonly RowRange[], { sender, rows }: Message): void => {
    const at = rowsIn(places);
    expect(at).toHaveLength(rows.length);
    for (const [i, row] of rows.entries()) {
      expect(out[rank]![at[i]!]).toBeUndefined();
      out[rank]![at[i]!] = [sender, row];
    }
  };
  for (const [from, { sends }] of routes.entries())
    for (const { to, ranges } of sends) hops[0].push({ from, to, sender: from, rows: rowsIn(ranges) });
  const [first, second] = [[...hops[0]], hops[1]];
  for (const [rank, { receives }] of routes.entries()) {
    for (const { from, destinations, forwardTo } of receives) {
      const message = take(hops[0], from, rank);
      place(rank, destinations, message);
      for (const to of forwardTo) second.push({ ...message, from: rank, to });
    }
  }
  const all = [...first, ...second];
  for (const [rank, { forwardedRows: forwarded = [] }] of routes.entries())
    for (const { from, destinations: places } of forwarded) place(rank, places, take(hops[1], from, rank));
  expect(hops).toEqual([[], []]);
  return { out, messages: all };
}

const hostsOf: readonly (readonly number[])[] = [
  [0, 0, 1, 1],
  [0, 1, 0, 1, 2],
  [0, 0, 0, 1, 1, 1, 1, 2],
  [3, 1, 1, 3, 0, 3],
];

test.each(hostsOf)("a row crosses to a host once, and reaches all who require it, once: hosts %j", (...hosts) => {
  for (let seed = 0; seed < 4; seed++) {
    const plan = planOf(hosts.length, seed);
    const { out, messages } = run(hosts.map((_, rank) => routeOf(plan, hosts, rank)!));
    const expected = hosts.map((_, rank) =>
      hosts.flatMap((_host, sender) => rowsIn(plan.ranges(sender, rank)).map((row): [number, number] => [sender, row])),
    );
    expect(out).toEqual(expected);
    for (const { from, to, sender, rows } of messages) {
      // A second hop stays within the host.
      if (from !== sender) expect(hosts[from]).toBe(hosts[to]);
      expect(rows.length).toBeGreaterThan(0);
    }
    for (const [sender, own] of hosts.entries()) {
      for (const host of new Set(hosts)) {
        if (host === own) continue;
        const crossing = messages.filter((each) => each.from === sender && hosts[each.to] === host);
        const required = new Set(
          hosts.flatMap((each, rank) => (each === host ? rowsIn(plan.ranges(sender, rank)) : [])),
        );
        const rows = crossing.flatMap((each) => each.rows);
        expect(rows.toSorted((a, b) => a - b)).toEqual([...required].toSorted((a, b) => a - b));
      }
    }
  }
});

test("rows cross between ranks of one place in their hosts, where these require them", () => {
  const hosts = [0, 0, 0, 1, 1, 1];
  const whole: GroupCastPlan = { size: 6, ranges: (from, to) => (from === to ? [] : [{ start: 0, length: 5 }]) };
  const peers = hosts.map((host, rank) => routeOf(whole, hosts, rank)!.sends.filter(({ to }) => hosts[to] !== host));
  expect(peers.map((sends) => sends.map(({ to }) => to))).toEqual([[3], [4], [5], [0], [1], [2]]);
});

test("rows of each message", () => {
  // Rank 0 sends rows 0..4 to rank 2 and rows 2..7 to rank 3: what both require is forwarded by rank 2.
  const ranges = (from: number, to: number): RowRange[] =>
    from !== 0 || to < 2 ? [] : [to === 2 ? { start: 0, length: 5 } : { start: 2, length: 6 }];
  const plan = { size: 4, ranges };
  const rows = (rank: number, hosts?: number[]) =>
    groupCastMessageRows(plan, { rank, size: 4, ...(hosts && { hosts }) });
  expect(rows(0, [0, 0, 1, 1])).toEqual({ sent: [2, 3, 3], received: [] });
  expect(rows(2, [0, 0, 1, 1])).toEqual({ sent: [3], received: [2, 3] });
  expect(rows(3, [0, 0, 1, 1])).toEqual({ sent: [], received: [3, 3] });
  expect(rows(0)).toEqual({ sent: [5, 6], received: [] });
  expect(rows(3, [5, 5, 5, 5])).toEqual({ sent: [], received: [6] });
});

test("one host, none known, or one rank on each: all rows come from their owners", () => {
  const plan = planOf(3, 0);
  expect(routeOf(plan, [4, 4, 4], 1)).toBeUndefined();
  expect(routeOf(plan, [0, 1, 2], 1)).toBeUndefined();
  const routes = [0, 1, 2].map((rank) => {
    const cast = rankGroupCast("test", plan, { rank, size: 3 });
    expect(hierarchicalRoute(plan, cast, { rank })).toBeUndefined();
    return directRoute(cast, { rank, size: 3 });
  });
  const { out, messages } = run(routes);
  expect(out[2]).toEqual([0, 1].flatMap((sender) => rowsIn(plan.ranges(sender, 2)).map((row) => [sender, row])));
  expect(messages.every(({ from, sender }) => from === sender)).toBe(true);
});
