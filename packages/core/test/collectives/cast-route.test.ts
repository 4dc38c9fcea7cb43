import { expect, test } from "vitest";
import { rankGroupCast } from "../../src/collectives/cast-plan.ts";
import {
  groupCastMessageRows,
  type GroupCastRoute,
  directRoute,
  hierarchicalRoute,
} from "../../src/collectives/cast-route.ts";
import type { GroupCastPlan, RowRange } from "../../src/collectives/process-group.ts";

function listRows(ranges: readonly RowRange[]): number[] {
  return ranges.flatMap(({ start, length }) => Array.from({ length }, (_, i) => start + i));
}

/**
 * Creates a plan with pseudo-random ranges for each sender and receiver: some are empty, some adjacent, and several
 * overlap between receivers.
 */
function createRandomPlan(size: number, seed: number): GroupCastPlan {
  const ranges = (sender: number, receiver: number): RowRange[] => {
    if (sender === receiver) return [];
    const candidateRanges = Array.from({ length: 5 }, (_, i) => ({
      start: 9 * i,
      length: 1 + ((sender + 3 * receiver + i) % 9),
    }));
    return candidateRanges.filter((_, i) => (7 * sender + 5 * receiver + 3 * i + seed) % 4 !== 0);
  };
  return { size, ranges };
}

const createRoute = (plan: GroupCastPlan, hosts: readonly number[], rank: number): GroupCastRoute | undefined =>
  hierarchicalRoute(plan, rankGroupCast("test", plan, { rank, size: hosts.length }), { rank, hosts });

/** A message with row indices of a sender. */
interface Message {
  readonly hopSender: number;
  readonly hopReceiver: number;
  readonly sender: number;
  readonly rows: readonly number[];
}

/**
 * Delivers the messages of all routes. Returns the messages of each hop and the resulting `out` of each rank, as
 * [sender, row].
 */
function deliverMessages(routes: readonly GroupCastRoute[]) {
  const hops: [Message[], Message[]] = [[], []];
  const out = routes.map((): (readonly [number, number])[] => []);
  const takeMessage = (hop: Message[], hopSender: number, hopReceiver: number): Message => {
    const index = hop.findIndex((each) => each.hopSender === hopSender && each.hopReceiver === hopReceiver);
    expect(index).toBeGreaterThanOrEqual(0);
    return hop.splice(index, 1)[0]!;
  };
  const placeRows = (rank: number, targetRanges: readonly RowRange[], { sender, rows }: Message): void => {
    const index = listRows(targetRanges);
    expect(index).toHaveLength(rows.length);
    for (const [i, row] of rows.entries()) {
      expect(out[rank]![index[i]!]).toBeUndefined();
      out[rank]![index[i]!] = [sender, row];
    }
  };
  for (const [hopSender, { sends }] of routes.entries())
    for (const { peer: hopReceiver, ranges } of sends)
      hops[0].push({ hopSender, hopReceiver, sender: hopSender, rows: listRows(ranges) });
  const [firstHop, secondHop] = [[...hops[0]], hops[1]];
  for (const [rank, { receives }] of routes.entries()) {
    for (const { sender: hopSender, destinations, forwardReceivers } of receives) {
      const message = takeMessage(hops[0], hopSender, rank);
      placeRows(rank, destinations, message);
      for (const hopReceiver of forwardReceivers) secondHop.push({ ...message, hopSender: rank, hopReceiver });
    }
  }
  const allMessages = [...firstHop, ...secondHop];
  for (const [rank, { forwardedRows: forwardedRanges = [] }] of routes.entries())
    for (const { sender: hopSender, destinations: targetRanges } of forwardedRanges)
      placeRows(rank, targetRanges, takeMessage(hops[1], hopSender, rank));
  expect(hops).toEqual([[], []]);
  return { out, messages: allMessages };
}

const hostsByTopology: readonly (readonly number[])[] = [
  [0, 0, 1, 1],
  [0, 1, 0, 1, 2],
  [0, 0, 0, 1, 1, 1, 1, 2],
  [3, 1, 1, 3, 0, 3],
];

test.each(hostsByTopology)(
  "each row is sent once to each host that requires it, and delivered once to each receiver: hosts %j",
  (...hosts) => {
    for (let seed = 0; seed < 4; seed++) {
      const plan = createRandomPlan(hosts.length, seed);
      const { out, messages } = deliverMessages(hosts.map((_, rank) => createRoute(plan, hosts, rank)!));
      const expected = hosts.map((_, rank) =>
        hosts.flatMap((_host, sender) =>
          listRows(plan.ranges(sender, rank)).map((row): [number, number] => [sender, row]),
        ),
      );
      expect(out).toEqual(expected);
      for (const { hopSender: from, hopReceiver: to, sender, rows } of messages) {
        // A second hop stays within the host.
        if (from !== sender) expect(hosts[from]).toBe(hosts[to]);
        expect(rows.length).toBeGreaterThan(0);
      }
      for (const [sender, senderHost] of hosts.entries()) {
        for (const host of new Set(hosts)) {
          if (host === senderHost) continue;
          const crossHostMessages = messages.filter(
            (each) => each.hopSender === sender && hosts[each.hopReceiver] === host,
          );
          const required = new Set(
            hosts.flatMap((each, rank) => (each === host ? listRows(plan.ranges(sender, rank)) : [])),
          );
          const rows = crossHostMessages.flatMap((each) => each.rows);
          expect(rows.toSorted((a, b) => a - b)).toEqual([...required].toSorted((a, b) => a - b));
        }
      }
    }
  },
);

test("rows cross hosts between ranks with the same index on their hosts", () => {
  const hosts = [0, 0, 0, 1, 1, 1];
  const allToAllPlan: GroupCastPlan = {
    size: 6,
    ranges: (hopSender, hopReceiver) => (hopSender === hopReceiver ? [] : [{ start: 0, length: 5 }]),
  };
  const crossHostSends = hosts.map((host, rank) =>
    createRoute(allToAllPlan, hosts, rank)!.sends.filter(({ peer }) => hosts[peer] !== host),
  );
  expect(crossHostSends.map((sends) => sends.map(({ peer }) => peer))).toEqual([[3], [4], [5], [0], [1], [2]]);
});

test("the ranks of a larger host send to all ranks of a smaller one", () => {
  const hosts = [0, 0, 0, 0, 1, 1];
  const plan: GroupCastPlan = {
    size: 6,
    ranges: (hopSender, hopReceiver) => (hopSender < 4 && hopReceiver >= 4 ? [{ start: 0, length: 5 }] : []),
  };
  const receivers = [0, 1, 2, 3].map((rank) => createRoute(plan, hosts, rank)!.sends.map(({ peer }) => peer));
  expect(receivers).toEqual([[4], [5], [4], [5]]);
});

test("a rank sends to the ranks after it first", () => {
  const plan: GroupCastPlan = {
    size: 4,
    ranges: (sender, receiver) => (sender === receiver ? [] : [{ start: 0, length: 1 }]),
  };
  const listPeers = (rank: number) =>
    directRoute(rankGroupCast("test", plan, { rank, size: 4 }), rank).sends.map(({ peer }) => peer);
  expect([0, 1, 2, 3].map(listPeers)).toEqual([
    [1, 2, 3],
    [2, 3, 0],
    [3, 0, 1],
    [0, 1, 2],
  ]);
});

test("groupCastMessageRows lists the rows of each message, with and without forwarding", () => {
  // Rank 0 sends rows 0..4 to rank 2 and rows 2..7 to rank 3. The rows that both require are forwarded by rank 2.
  const ranges = (sender: number, receiver: number): RowRange[] =>
    sender !== 0 || receiver < 2 ? [] : [receiver === 2 ? { start: 0, length: 5 } : { start: 2, length: 6 }];
  const plan = { size: 4, ranges };
  const rows = (rank: number, hosts?: number[]) =>
    groupCastMessageRows(plan, { rank, size: 4, ...(hosts && { hosts }) });
  expect(rows(0, [0, 0, 1, 1])).toEqual({ sent: [2, 3, 3], received: [] });
  expect(rows(2, [0, 0, 1, 1])).toEqual({ sent: [3], received: [2, 3] });
  expect(rows(3, [0, 0, 1, 1])).toEqual({ sent: [], received: [3, 3] });
  expect(rows(0)).toEqual({ sent: [5, 6], received: [] });
  expect(rows(3, [5, 5, 5, 5])).toEqual({ sent: [], received: [6] });
});

test("rows come directly from their owners with one host, unknown hosts, or one rank per host", () => {
  const plan = createRandomPlan(3, 0);
  expect(createRoute(plan, [4, 4, 4], 1)).toBeUndefined();
  expect(createRoute(plan, [0, 1, 2], 1)).toBeUndefined();
  const routes = [0, 1, 2].map((rank) => {
    const cast = rankGroupCast("test", plan, { rank, size: 3 });
    expect(hierarchicalRoute(plan, cast, { rank })).toBeUndefined();
    return directRoute(cast, rank);
  });
  const { out, messages } = deliverMessages(routes);
  expect(out[2]).toEqual([0, 1].flatMap((sender) => listRows(plan.ranges(sender, 2)).map((row) => [sender, row])));
  expect(messages.every(({ hopSender: from, sender }) => from === sender)).toBe(true);
});
