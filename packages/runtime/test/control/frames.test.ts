import { execFileSync } from "node:child_process";
import { describe, expect, test } from "vitest";
import { testFrames } from "./mutations.ts";
import { compile } from "./native.ts";

/** Frames between agents or launchers. Only the launcher implements them. */
const NOT_OF_RANKS = [
  ...["accept", "redirect", "heartbeat", "cancelJoin"],
  ...["register", "rendezvousStatus", "assign", "clock", "failing", "stop", "report", "ended", "outcome", "world"],
];

const frames = testFrames.map(({ bytes, ...frame }) => ({ ...frame, hex: bytes.toString("hex") }));

const program = await compile("control_frames");

/** Decodes frames in hex by the C++ codec, and returns its output lines. */
function decodeFrames(hex: readonly string[]): readonly string[] {
  const input = `${hex.join("\n")}\n`;
  return execFileSync(program, { input, encoding: "utf8" }).trimEnd().split("\n");
}

describe("the C++ codec of the frames in docs/control-plane.md", () => {
  const rankFrames = frames.filter(({ kind }) => !NOT_OF_RANKS.includes(kind));
  const decodedLines = decodeFrames(rankFrames.map(({ hex }) => hex));

  test("covers all kinds of frames of ranks", () => expect(new Set(rankFrames.map(({ kind }) => kind)).size).toBe(22));

  test.each(rankFrames.map((frame, i) => [frame.kind, frame, decodedLines[i]!] as const))(
    "%s",
    (_, { fields, hex }, line) => {
      const [json = "", written] = line.split("\t");
      expect(JSON.parse(json)).toEqual(fields);
      expect(written).toBe(hex);
    },
  );
});

test("a frame that is truncated anywhere, or has an extra byte, is rejected", () => {
  const truncatedFrames = frames
    .filter(({ kind }) => !NOT_OF_RANKS.includes(kind))
    .flatMap(({ hex }) =>
      Array.from({ length: hex.length / 2 - 5 }, (_, i) => hex.slice(0, 10 + 2 * i)).concat(`${hex}00`),
    );
  const answers = decodeFrames(truncatedFrames);
  expect(answers).toHaveLength(truncatedFrames.length);
  expect(answers.filter((line) => !line.startsWith("refused "))).toEqual([]);
});

test("lists and ranges that exceed the limits of a frame or of a world are rejected", () => {
  const encodeU32 = (value: number): string => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(value);
    return bytes.toString("hex");
  };
  const encodeExited = (list: number, first: number, count: number): string =>
    `${encodeU32(17)}0e${encodeU32(0)}${encodeU32(list)}${encodeU32(first)}${encodeU32(count)}`;
  expect(
    decodeFrames([
      encodeExited(2 ** 31, 0, 1),
      encodeExited(1, 0, 65_537),
      encodeExited(1, 65_536, 1),
      encodeExited(1, 3, 0),
    ]),
  ).toEqual([
    `refused expected a list that fits in its frame, received a list of ${2 ** 31} elements`,
    "refused expected ranks below 65536, received 65537 ranks starting at rank 0",
    "refused expected ranks below 65536, received 1 ranks starting at rank 65536",
    "refused expected at least 1 rank per range, received 0 ranks starting at rank 3",
  ]);
});
