import { describe, expect, it, vi } from "vitest";
import { Branches, type Link } from "../../src/agent/branches.ts";
import type { Frame, FrameOf, RankMetrics, RankPosition } from "../../src/agent/frames.ts";
import { PositionCollector } from "../../src/agent/positions.ts";

/** A connection that keeps the frames that are sent on it. */
interface TestLink extends Link {
  readonly frames: Frame[];
}

function createLink(): TestLink {
  const frames: Frame[] = [];
  const channel = { send: (frame: Frame) => void frames.push(frame) };
  return { channel: channel as unknown as Link["channel"], isAgent: false, isObserver: false, frames };
}

const metrics: RankMetrics = {
  ...{ time: 1n, steps: 2n, step: 3n, sinceStep: 4n, waiting: 5n },
  ...{ bytesSent: 6n, bytesReceived: 7n, reserved: 8n, peak: 9n, resident: 10n },
};

const createPosition = (ranks: RankPosition["ranks"], fields: Partial<RankPosition> = {}): RankPosition => ({
  ...{ ranks, activity: 2, group: 1n, sequence: 7n, index: 7n },
  ...{ operation: "allReduce #7 (world)", description: "", last: "", metrics: [] },
  ...fields,
});

/** Creates the root of four ranks, each with a connection of its own. */
function createRoot(exited: ReadonlyMap<number, string> = new Map(), lost: ReadonlySet<number> = new Set()) {
  const branches = new Branches(4, undefined);
  const links = Array.from({ length: 4 }, createLink);
  for (const [rank, link] of links.entries()) {
    branches.add(link, 0);
    branches.assignRank(link, rank);
  }
  const collector = new PositionCollector(branches, { exited, lost });
  const request = (rank: number, fields: Pick<FrameOf<"positionsRequest">, "metrics" | "ranks">) =>
    collector.request(links[rank]!, { kind: "positionsRequest", world: 0, request: BigInt(rank), ...fields });
  const framesOf = <K extends Frame["kind"]>(rank: number, kind: K) =>
    links[rank]!.frames.filter((frame): frame is Extract<Frame, FrameOf<K>> => frame.kind === kind);
  /** Replies with the position of each queried rank. */
  const replyAll = (positionOf: (rank: number) => RankPosition) => {
    for (const [rank, link] of links.entries())
      for (const { query } of framesOf(rank, "positionsQuery"))
        collector.onQueryReply(link, { kind: "positionsReply", world: 0, query, positions: [positionOf(rank)] });
  };
  return { collector, request, framesOf, replyAll };
}

describe("the root's collector of positions", () => {
  it("asks for metrics if one of several requesters does, and sends them only to that one", async () => {
    const { collector, request, framesOf, replyAll } = createRoot();
    request(0, { metrics: 0, ranks: [[1, 1]] });
    request(2, { metrics: 1, ranks: [[1, 1]] });
    await vi.waitFor(() => expect(framesOf(1, "positionsQuery")).toHaveLength(1), { interval: 1 });
    expect(framesOf(1, "positionsQuery")[0]).toMatchObject({ metrics: 1, ranks: [[1, 1]] });
    expect(framesOf(3, "positionsQuery")).toEqual([]);
    replyAll((rank) => createPosition([[rank, 1]], { metrics: [metrics] }));
    expect(framesOf(0, "positions")).toMatchObject([{ request: 0n, positions: [createPosition([[1, 1]])] }]);
    expect(framesOf(2, "positions")).toMatchObject([
      { request: 2n, positions: [createPosition([[1, 1]], { metrics: [metrics] })] },
    ]);
    collector.dispose();
  });

  it("queries all ranks for a request of most of them, and joins ranks with the same position", async () => {
    const { collector, request, framesOf, replyAll } = createRoot();
    request(0, { metrics: 0, ranks: [[0, 3]] });
    await vi.waitFor(() => expect(framesOf(3, "positionsQuery")).toHaveLength(1), { interval: 1 });
    replyAll((rank) => createPosition([[rank, 1]], { index: rank === 1 ? 8n : 7n }));
    expect(framesOf(0, "positions")[0]?.positions).toEqual([
      createPosition([
        [0, 1],
        [2, 1],
      ]),
      createPosition([[1, 1]], { index: 8n }),
    ]);
    collector.dispose();
  });

  it("reports ranks that have exited or were lost, whatever they replied before", async () => {
    const { collector, request, framesOf, replyAll } = createRoot(new Map([[1, "barrier #3 (world)"]]), new Set([2]));
    request(0, { metrics: 0, ranks: [[0, 3]] });
    await vi.waitFor(() => expect(framesOf(3, "positionsQuery")).toHaveLength(1), { interval: 1 });
    replyAll((rank) => createPosition([[rank, 1]]));
    const unknown = { group: 0n, sequence: 0n, index: 0n, operation: "" };
    expect(framesOf(0, "positions")[0]?.positions).toEqual([
      createPosition([[0, 1]]),
      createPosition([[1, 1]], { activity: 3, ...unknown, last: "barrier #3 (world)" }),
      createPosition([[2, 1]], { activity: 4, ...unknown }),
    ]);
    collector.dispose();
  });
});
