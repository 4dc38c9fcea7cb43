import { expect, test } from "vitest";
import { type Profile, simulate } from "../../src/index.ts";
import { linked, runScript, scripted, slowProfile, type RankStage, times, toyProfile } from "./toy.ts";

/** Ranks 0 and 1 send to 2 and 3, so many elements each. */
const across =
  (first: number, second: number) =>
  ({ ctx, rank, tensor }: RankStage): void => {
    const own = tensor(rank % 2 === 0 ? first : second);
    ctx.world.sendRecv([rank < 2 ? { tensor: own, to: rank + 2 } : { tensor: own, from: rank - 2 }]).wait();
  };

const nodesOfTwo = (sharedBy: number): Profile => ({
  ...toyProfile,
  ranksPerNode: 2,
  links: { ...toyProfile.links, "inter-node": { ...slowProfile, sharedBy } },
});

test("messages at one port share it, and the last has it to itself", () => {
  const run = runScript({ sp: 4 }, nodesOfTwo(2), across(1, 3));
  expect(times(run, 0, "sendRecv")).toEqual([[0, 2]]);
  expect(times(run, 1, "sendRecv")).toEqual([[0, 4]]);
  expect(times(run, 3, "sendRecv")).toEqual([[0, 4]]);
});

test("ranks with a rail each do not feel one another", () => {
  const run = runScript({ sp: 4 }, nodesOfTwo(1), across(1, 3));
  expect(times(run, 0, "sendRecv")).toEqual([[0, 1]]);
  expect(times(run, 1, "sendRecv")).toEqual([[0, 3]]);
});

test("links of two classes are two ports", () => {
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

test("a port that is not duplex shares itself between both ways", () => {
  const swap = ({ ctx, rank, tensor }: RankStage): void => {
    ctx.world
      .sendRecv([
        { tensor: tensor(2), to: 1 - rank },
        { tensor: tensor(2), from: 1 - rank },
      ])
      .wait();
  };
  expect(runScript({ sp: 2 }, toyProfile, swap).seconds).toBeCloseTo(2, 9);
  expect(runScript({ sp: 2 }, linked({ duplex: false }), swap).seconds).toBeCloseTo(4, 9);
});

test("kernels share the cores of a node", () => {
  const run = runScript({ sp: 4 }, { ...toyProfile, cores: { perNode: 2 } }, ({ rank, compute }) => {
    compute();
    if (rank === 0) compute();
  });
  // Four at half speed, then one alone.
  expect(times(run, 0, "attend")).toEqual([
    [0, 2],
    [2, 3],
  ]);
  expect(times(run, 3, "attend")).toEqual([[0, 2]]);
  expect(
    runScript({ sp: 4 }, { ...toyProfile, ranksPerNode: 2, cores: { perNode: 2 } }, ({ compute }) => compute()).seconds,
  ).toBe(1);
});

test("messages go first where ranks share cores, and take from the kernels", () => {
  const run = runScript({ sp: 2 }, { ...toyProfile, cores: { perNode: 3 } }, ({ ctx, rank, compute, tensor }) => {
    const work = ctx.world.sendRecv([
      { tensor: tensor(0.5 * 2), to: 1 - rank },
      { tensor: tensor(0.5 * 2), from: 1 - rank },
    ]);
    compute();
    work.wait();
  });
  // One core of three is left to two kernels for a second; then there is half of each to do.
  expect(times(run, 0, "sendRecv")).toEqual([[0, 1]]);
  expect(times(run, 0, "attend")).toEqual([[0, 1.5]]);
});

test("hosts take a core while they enqueue", () => {
  const run = runScript({ sp: 1 }, { ...toyProfile, enqueue: 0.25, cores: { perNode: 1 } }, ({ compute }) => compute());
  const [[start, end]] = times(run, 0, "attend") as [[number, number]];
  // Two fills and the tile are enqueued; from then on host and kernel have half a core each, until the host is done.
  expect(start).toBeCloseTo(0.75, 9);
  const rest = hostSeconds() - 0.75;
  expect(end).toBeCloseTo(0.75 + 1 + Math.min(1, rest), 9);
});

test("a step begins after what the host does before its first operation", () => {
  const run = runScript({ sp: 1 }, { ...toyProfile, stepOverhead: 2 }, ({ compute }) => compute());
  expect(times(run, 0, "attend")).toEqual([[2, 3]]);
});

test("kernels of ranks that wait for each other reach a share of their speed, and waits take time", () => {
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
  expect(times(runScript({ sp: 2 }, { ...toyProfile, cores }, script), 0, "attend")).toEqual([
    [0, 2],
    [2.25, 4.25],
  ]);
  const late = runScript(
    { sp: 2 },
    { ...toyProfile, cores: { perNode: 8, wait: 0.25 } },
    ({ ctx, rank, compute, tensor }) => {
      ctx.world.sendRecv([rank === 0 ? { tensor: tensor(4), to: 1 } : { tensor: tensor(4), from: 0 }]).wait();
      compute();
    },
  );
  expect(times(late, 1, "attend")).toEqual([[4.25, 5.25]]);
  expect(late.ranks[1]!.exposedCommunicationSeconds).toBe(4.25);
});

/** All that the host enqueues in a scripted attention of one tile. */
function hostSeconds(): number {
  const event = scripted({ sp: 1 }, ({ compute }) => compute()).ranks[0]!.tape.read();
  let seconds = 0;
  while (event.next()) if (!["empty", "free", "mark"].includes(event.op)) seconds += 0.25;
  return seconds;
}

test("a rank that communicates computes more slowly where communication takes units", () => {
  const run = runScript({ sp: 2 }, { ...toyProfile, communicationTax: 0.5 }, ({ ctx, rank, compute, tensor }) => {
    const work = ctx.world.sendRecv([
      { tensor: tensor(1), to: 1 - rank },
      { tensor: tensor(1), from: 1 - rank },
    ]);
    compute();
    work.wait();
  });
  expect(times(run, 0, "attend")).toEqual([[0, 1.5]]);
});

test("rates change as often as need be and no work is lost", () => {
  const elements = (a: number, b: number): number => 1 + ((a + b) % 3);
  const others = (rank: number): number[] => [1, 2, 3].map((step) => (rank + step) % 4);
  const record = scripted({ sp: 4 }, ({ ctx, rank, compute, tensor }) => {
    const transfers = others(rank).flatMap((peer) => [
      { tensor: tensor(elements(rank, peer)), to: peer },
      { tensor: tensor(elements(rank, peer)), from: peer },
    ]);
    const work = ctx.world.sendRecv(transfers);
    for (let i = 0; i <= rank; i++) compute();
    work.wait();
  });
  const { ranks, seconds } = simulate(record, { ...toyProfile, cores: { perNode: 3 } });
  for (const { rank, events } of ranks) {
    const sent = events.reduce((sum, { bytesSent }) => sum + (bytesSent ?? 0), 0);
    expect(sent).toBe(others(rank).reduce((sum, peer) => sum + 4 * elements(rank, peer), 0));
    expect(events.filter(({ name }) => name === "attend").length).toBe(rank + 1);
  }
  // Each rank has 5 or 6 elements to send, and the ten tiles wait for three cores.
  const sending = ranks.map(({ rank }) => others(rank).reduce((sum, peer) => sum + elements(rank, peer), 0));
  expect(seconds).toBeGreaterThanOrEqual((10 + sending.reduce((sum, each) => sum + each, 0)) / 3 - 1e-9);
  expect(seconds).toBeLessThanOrEqual(10 + 4 * Math.max(...sending));
});
