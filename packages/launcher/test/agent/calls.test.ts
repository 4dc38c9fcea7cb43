import { describe, expect, it } from "vitest";
import { Branches, type Link, type LocalWorldFrame } from "../../src/agent/branches.ts";
import { CallChecker } from "../../src/agent/calls.ts";
import { decode, type Frame, type FrameOf } from "../../src/agent/frames.ts";
import { GroupTable } from "../../src/agent/splits.ts";

const WORLD = 1n;
const SIZE = 4;

/** Creates an agent with ranks 0 and 1 below it, one per connection: the root of two ranks, or a child of four. */
function createAgent(parentFrames?: LocalWorldFrame[]) {
  const size = parentFrames ? SIZE : 2;
  const branches = new Branches(size, parentFrames && ((frame) => void parentFrames.push(frame)));
  const frames: Frame[][] = [[], []];
  const links = frames.map((sent): Link => {
    const send = (frame: Frame) => void sent.push(frame);
    // After the length of the frame.
    const write = (bytes: Buffer) => void sent.push(decode(bytes.subarray(4)));
    return { channel: { send, write } as unknown as Link["channel"], isAgent: false, isObserver: false };
  });
  for (const [rank, link] of links.entries()) {
    branches.add(link, 0);
    branches.assignRank(link, rank);
  }
  const checker = new CallChecker(branches, new GroupTable(size));
  const report = (rank: number, history: bigint) =>
    checker.onReport(links[rank]!, { kind: "call", world: 0, group: WORLD, index: 5n, history, rank, ranks: [] });
  const reply = (rank: number, description: string) => {
    const query = frames[rank]!.find((frame): frame is FrameOf<"callLogQuery"> => frame.kind === "callLogQuery")!;
    const calls = [{ index: 5n, history: BigInt(rank), description }];
    checker.onQueryReply({ kind: "callLogReply", world: 0, query: query.query, rank, calls });
  };
  return { checker, frames, report, reply };
}

describe("reports of the calls of a group", () => {
  it("are forwarded once, when all ranks below the agent agree", () => {
    const parentFrames: LocalWorldFrame[] = [];
    const { frames, report } = createAgent(parentFrames);
    report(0, 7n);
    expect(parentFrames).toEqual([]);
    report(1, 7n);
    expect(parentFrames).toEqual([{ kind: "call", group: WORLD, index: 5n, history: 7n, rank: 1, ranks: [] }]);
    expect(frames).toEqual([[], []]);
  });

  it("end at the agent that has all ranks of the group below it", () => {
    const { frames, report } = createAgent();
    for (const history of [7n, 8n]) for (const rank of [0, 1]) report(rank, history);
    expect(frames).toEqual([[], []]);
  });

  it("are reported once as a mismatch, although two children find it", () => {
    const { checker, frames } = createAgent();
    for (const message of ["first", "second"]) checker.reportMismatch({ group: WORLD, message, ranks: [] });
    for (const sent of frames) expect(sent).toMatchObject([{ kind: "mismatch", message: "first" }]);
  });

  it.each([
    [0, 1],
    [1, 0],
  ])("that differ are reported to all ranks, if the logs arrive from rank %d first", (first, second) => {
    const { frames, report, reply } = createAgent();
    report(0, 7n);
    report(1, 8n);
    const descriptions = ["allReduce [2]", "allReduce [3]"];
    reply(first, descriptions[first]!);
    expect(frames.map((sent) => sent.map(({ kind }) => kind))).toEqual([["callLogQuery"], ["callLogQuery"]]);
    reply(second, descriptions[second]!);
    for (const sent of frames) {
      expect(sent[1]).toMatchObject({ kind: "mismatch", group: WORLD });
      expect((sent[1] as FrameOf<"mismatch">).message).toMatch(
        /^rank 0 is at allReduce \[2\], rank 1 at allReduce \[3\];/,
      );
    }
    // Later reports of the group are ignored.
    for (const rank of [0, 1]) report(rank, BigInt(rank));
    expect(frames.map(({ length }) => length)).toEqual([2, 2]);
  });
});
