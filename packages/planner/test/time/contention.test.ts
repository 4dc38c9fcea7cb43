import { expect, test } from "vitest";
import { type Profile, simulate } from "../../src/index.ts";
import { profileWithLink, runScript, recordScript, slowLink, type RankStage, listTimes, toyProfile } from "./toy.ts";

/** Sends from ranks 0 and 1 to ranks 2 and 3, with these numbers of elements. */
const sendAcross =
  (evenElements: number, oddElements: number) =>
  ({ ctx, rank, tensor }: RankStage): void => {
    const buffer = tensor(rank % 2 === 0 ? evenElements : oddElements);
    ctx.world.sendRecv([rank < 2 ? { tensor: buffer, to: rank + 2 } : { tensor: buffer, from: rank - 2 }]).wait();
  };

const createTwoRankNodes = (sharedBy: number): Profile => ({
  ...toyProfile,
  ranksPerNode: 2,
  links: { ...toyProfile.links, "inter-node": { ...slowLink, sharedBy } },
});

test("concurrent messages share a port, and the last one uses all of it", () => {
  const simulation = runScript({ sp: 4 }, createTwoRankNodes(2), sendAcross(1, 3));
  expect(listTimes(simulation, 0, "sendRecv")).toEqual([[0, 2]]);
  expect(listTimes(simulation, 1, "sendRecv")).toEqual([[0, 4]]);
  expect(listTimes(simulation, 3, "sendRecv")).toEqual([[0, 4]]);
});

test("concurrent messages to one rank share the port on which it receives", () => {
  const simulation = runScript({ sp: 3 }, toyProfile, ({ ctx, rank, tensor }) => {
    const sends = [{ tensor: tensor(rank === 0 ? 1 : 3), to: 2 }];
    const receives = [
      { tensor: tensor(1), from: 0 },
      { tensor: tensor(3), from: 1 },
    ];
    ctx.world.sendRecv(rank < 2 ? sends : receives).wait();
  });
  expect(listTimes(simulation, 0, "sendRecv")).toEqual([[0, 2]]);
  expect(listTimes(simulation, 1, "sendRecv")).toEqual([[0, 4]]);
});

test("a message uses the rest of its port as soon as another one ends, although no rank continues then", () => {
  const simulation = runScript({ sp: 4 }, profileWithLink({ bandwidth: 3 }), ({ ctx, rank, compute, tensor }) => {
    if (rank === 1) for (let i = 0; i < 10; i++) compute();
    const transfersByRank = [
      [
        { tensor: tensor(1), to: 2 },
        { tensor: tensor(3), to: 3 },
      ],
      [{ tensor: tensor(1), to: 2 }],
      // Rank 2 waits for rank 1, too.
      [
        { tensor: tensor(1), from: 0 },
        { tensor: tensor(1), from: 1 },
      ],
      [{ tensor: tensor(3), from: 0 }],
    ];
    ctx.world.sendRecv(transfersByRank[rank]!).wait();
  });
  // Four elements of 4/3 s each.
  expect(listTimes(simulation, 0, "sendRecv")).toEqual([[0, expect.closeTo(16 / 3, 8)]]);
});

test("ranks with one rail each do not slow each other down", () => {
  const simulation = runScript({ sp: 4 }, createTwoRankNodes(1), sendAcross(1, 3));
  expect(listTimes(simulation, 0, "sendRecv")).toEqual([[0, 1]]);
  expect(listTimes(simulation, 1, "sendRecv")).toEqual([[0, 3]]);
});

test("links of two classes use separate ports", () => {
  const script = ({ ctx, rank, tensor }: RankStage): void => {
    const peers = [rank ^ 1, rank ^ 2];
    const transfers = peers.flatMap((peer) => [
      { tensor: tensor(2), to: peer },
      { tensor: tensor(2), from: peer },
    ]);
    ctx.world.sendRecv(transfers).wait();
  };
  expect(runScript({ sp: 4 }, { ...toyProfile, ranksPerNode: 2 }, script).seconds).toBeCloseTo(2, 9);
  expect(runScript({ sp: 4 }, { ...toyProfile, ranksPerNode: 4 }, script).seconds).toBeCloseTo(4, 9);
});

test("a port that is not duplex divides its bandwidth between both directions", () => {
  const exchange = ({ ctx, rank, tensor }: RankStage): void => {
    ctx.world
      .sendRecv([
        { tensor: tensor(2), to: 1 - rank },
        { tensor: tensor(2), from: 1 - rank },
      ])
      .wait();
  };
  expect(runScript({ sp: 2 }, toyProfile, exchange).seconds).toBeCloseTo(2, 9);
  expect(runScript({ sp: 2 }, profileWithLink({ duplex: false }), exchange).seconds).toBeCloseTo(4, 9);
});

test("kernels share the cores of a node", () => {
  const simulation = runScript({ sp: 4 }, { ...toyProfile, cores: { perNode: 2 } }, ({ rank, compute }) => {
    compute();
    if (rank === 0) compute();
  });
  // Four tiles run at half speed, then one alone.
  expect(listTimes(simulation, 0, "attend")).toEqual([
    [0, 2],
    [2, 3],
  ]);
  expect(listTimes(simulation, 3, "attend")).toEqual([[0, 2]]);
  expect(
    runScript({ sp: 4 }, { ...toyProfile, ranksPerNode: 2, cores: { perNode: 2 } }, ({ compute }) => compute()).seconds,
  ).toBe(1);
});

test("messages take precedence over kernels if ranks share cores", () => {
  const simulation = runScript(
    { sp: 2 },
    { ...toyProfile, cores: { perNode: 3 } },
    ({ ctx, rank, compute, tensor }) => {
      const work = ctx.world.sendRecv([
        { tensor: tensor(0.5 * 2), to: 1 - rank },
        { tensor: tensor(0.5 * 2), from: 1 - rank },
      ]);
      compute();
      work.wait();
    },
  );
  // For one second, two kernels share one of three cores. Half of each is left afterwards.
  expect(listTimes(simulation, 0, "sendRecv")).toEqual([[0, 1]]);
  expect(listTimes(simulation, 0, "attend")).toEqual([[0, 1.5]]);
});

test("messages share the cores of a node if more ranks transfer them than there are cores", () => {
  const simulation = runScript({ sp: 4 }, { ...toyProfile, cores: { perNode: 2 } }, sendAcross(1, 3));
  // Four ranks transfer on two cores until the shorter message is complete, then two do.
  expect(listTimes(simulation, 0, "sendRecv")).toEqual([[0, 2]]);
  expect(listTimes(simulation, 1, "sendRecv")).toEqual([[0, 4]]);
});

test("a host occupies a core while it enqueues", () => {
  const simulation = runScript({ sp: 1 }, { ...toyProfile, enqueue: 0.25, cores: { perNode: 1 } }, ({ compute }) =>
    compute(),
  );
  const [[start, end]] = listTimes(simulation, 0, "attend") as [[number, number]];
  // Two fills and the tile are enqueued first. Then host and kernel have half a core each, until the host is done.
  expect(start).toBeCloseTo(0.75, 9);
  const remainingHostSeconds = countHostSeconds() - 0.75;
  expect(end).toBeCloseTo(0.75 + 1 + Math.min(1, remainingHostSeconds), 9);
});

test("a step begins after the step overhead of the host", () => {
  const simulation = runScript({ sp: 1 }, { ...toyProfile, stepOverhead: 2 }, ({ compute }) => compute());
  expect(listTimes(simulation, 0, "attend")).toEqual([[2, 3]]);
});

test("kernels of ranks that wait for each other run at the stated efficiency, and waits take time", () => {
  const script = ({ ctx, rank, compute, tensor }: RankStage): void => {
    for (let step = 0; step < 2; step++) {
      const work = ctx.world.sendRecv([
        { tensor: tensor(1), to: 1 - rank },
        { tensor: tensor(1), from: 1 - rank },
      ]);
      compute();
      work.wait();
    }
  };
  const cores = { perNode: 8, efficiency: 0.5, wait: 0.25 };
  expect(listTimes(runScript({ sp: 2 }, { ...toyProfile, cores }, script), 0, "attend")).toEqual([
    [0, 2],
    [2.25, 4.25],
  ]);
  const lateSimulation = runScript(
    { sp: 2 },
    { ...toyProfile, cores: { perNode: 8, wait: 0.25 } },
    ({ ctx, rank, compute, tensor }) => {
      ctx.world.sendRecv([rank === 0 ? { tensor: tensor(4), to: 1 } : { tensor: tensor(4), from: 0 }]).wait();
      compute();
    },
  );
  expect(listTimes(lateSimulation, 1, "attend")).toEqual([[4.25, 5.25]]);
  expect(lateSimulation.ranks[1]!.exposedCommunicationSeconds).toBe(4.25);
});

/** Returns the seconds that the host enqueues in a scripted attention of one tile. */
function countHostSeconds(): number {
  const event = recordScript({ sp: 1 }, ({ compute }) => compute()).ranks[0]!.tape.read();
  let seconds = 0;
  while (event.next()) if (!["empty", "free", "mark"].includes(event.op)) seconds += 0.25;
  return seconds;
}

test("the communication tax slows down the kernels of a rank that communicates", () => {
  const simulation = runScript(
    { sp: 2 },
    { ...toyProfile, communicationTax: 0.5 },
    ({ ctx, rank, compute, tensor }) => {
      const work = ctx.world.sendRecv([
        { tensor: tensor(1), to: 1 - rank },
        { tensor: tensor(1), from: 1 - rank },
      ]);
      compute();
      work.wait();
    },
  );
  expect(listTimes(simulation, 0, "attend")).toEqual([[0, 1.5]]);
});

test("the communication tax does not slow down the host", () => {
  const profile = { ...toyProfile, enqueue: 0.5, communicationTax: 0.5 };
  const simulation = runScript({ sp: 2 }, profile, ({ ctx, rank, compute, tensor }) => {
    const work = ctx.world.sendRecv([rank === 0 ? { tensor: tensor(8), to: 1 } : { tensor: tensor(8), from: 0 }]);
    compute();
    work.wait();
  });
  // Two fills, the message and the tile are enqueued.
  expect(listTimes(simulation, 0, "attend")).toEqual([[2, 4]]);
});

test("all bytes and tiles are completed while rates change repeatedly", () => {
  const countElements = (a: number, b: number): number => 1 + ((a + b) % 3);
  const listPeers = (rank: number): number[] => [1, 2, 3].map((step) => (rank + step) % 4);
  const record = recordScript({ sp: 4 }, ({ ctx, rank, compute, tensor }) => {
    const transfers = listPeers(rank).flatMap((peer) => [
      { tensor: tensor(countElements(rank, peer)), to: peer },
      { tensor: tensor(countElements(rank, peer)), from: peer },
    ]);
    const work = ctx.world.sendRecv(transfers);
    for (let i = 0; i <= rank; i++) compute();
    work.wait();
  });
  const { ranks, seconds } = simulate(record, { ...toyProfile, cores: { perNode: 3 } });
  for (const { rank, events } of ranks) {
    const sent = events.reduce((sum, { bytesSent }) => sum + (bytesSent ?? 0), 0);
    expect(sent).toBe(listPeers(rank).reduce((sum, peer) => sum + 4 * countElements(rank, peer), 0));
    expect(events.filter(({ name }) => name === "attend").length).toBe(rank + 1);
  }
  // Each rank has 5 or 6 elements to send, and the ten tiles share three cores.
  const elementsSent = ranks.map(({ rank }) =>
    listPeers(rank).reduce((sum, peer) => sum + countElements(rank, peer), 0),
  );
  expect(seconds).toBeGreaterThanOrEqual((10 + elementsSent.reduce((sum, each) => sum + each, 0)) / 3 - 1e-9);
  expect(seconds).toBeLessThanOrEqual(10 + 4 * Math.max(...elementsSent));
});
