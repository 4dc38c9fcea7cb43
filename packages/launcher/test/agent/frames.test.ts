import { isDeepStrictEqual } from "node:util";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { decode, encode, type Frame, FrameReader } from "../../src/agent/frames.ts";
import {
  countRanks,
  formatRankRanges,
  subtractRankRanges,
  intersectRankRanges,
  includesRank,
  expandRankRanges,
  toRankRanges,
  unionRankRanges,
} from "../../src/agent/rank-ranges.ts";
import { LIMITS, ProtocolError } from "../../src/agent/wire.ts";
import { testFrames } from "./test-frames.ts";

const frames = testFrames();
const KINDS = 36;

/** Converts a frame to the JSON format of docs/control-plane.md. */
const toDocumentedJson = (frame: Frame): unknown =>
  JSON.parse(
    JSON.stringify(frame, function (this: Record<string, unknown>, key, value) {
      const rawValue = this[key];
      if (typeof rawValue === "bigint") return String(rawValue);
      if (rawValue instanceof BigInt64Array) return Array.from(rawValue, String);
      return Buffer.isBuffer(rawValue) ? rawValue.toString("hex") : value;
    }),
  );

describe("the frames of docs/control-plane.md", () => {
  it("cover every kind of frame", () => {
    expect(new Set(frames.map(({ json }) => json.kind)).size).toBe(KINDS);
  });

  it.each(frames.map((frame) => [frame.json.kind, frame] as const))(
    "decode and encode without changes: %s",
    (_, { json, bytes }) => {
      const frame = decode(bytes.subarray(4));
      expect(toDocumentedJson(frame)).toEqual(json);
      expect(encode(frame).toString("hex")).toBe(bytes.toString("hex"));
    },
  );

  it("are read from a byte stream that is split at arbitrary positions", () => {
    const stream = Buffer.concat(frames.map(({ bytes }) => bytes));
    fc.assert(
      fc.property(fc.array(fc.nat(stream.length), { maxLength: 12 }), (cuts) => {
        const reader = new FrameReader();
        const decodedFrames: string[] = [];
        const chunkEdges = [0, ...cuts.toSorted((a, b) => a - b), stream.length];
        for (let i = 1; i < chunkEdges.length; i++) {
          reader.push(stream.subarray(chunkEdges[i - 1], chunkEdges[i]));
          for (let content = reader.next(); content !== undefined; content = reader.next())
            decodedFrames.push(content.toString("hex"));
        }
        expect(decodedFrames).toEqual(frames.map(({ bytes }) => bytes.subarray(4).toString("hex")));
      }),
    );
  });
});

describe("the validation of frames", () => {
  /** Decodes bytes that may be invalid: returns the frame, or undefined if they are rejected with a ProtocolError. */
  const tryDecode = (content: Buffer): Frame | undefined => {
    try {
      return decode(content);
    } catch (error) {
      if (error instanceof ProtocolError) return undefined;
      throw error;
    }
  };

  it("rejects every frame that is truncated anywhere", () => {
    const acceptedFrames = frames.flatMap(({ json, bytes }) =>
      Array.from({ length: bytes.length - 4 }, (_, length) => bytes.subarray(4, 4 + length))
        .filter((content) => tryDecode(content) !== undefined)
        .map((content) => `${json.kind} of ${content.length} bytes`),
    );
    expect(acceptedFrames).toEqual([]);
  });

  it("rejects a frame with a changed byte, or decodes it to a frame that can be encoded", () => {
    const acceptedFrames = frames.flatMap(({ bytes }) =>
      Array.from({ length: 3 * (bytes.length - 4) }, (_, i) => {
        const content = Buffer.from(bytes.subarray(4));
        content[Math.floor(i / 3)]! ^= [0x01, 0x80, 0xff][i % 3]!;
        return tryDecode(content);
      }).filter((frame) => frame !== undefined),
    );
    const differingFrames = acceptedFrames.filter(
      (frame) => !isDeepStrictEqual(decode(encode(frame).subarray(4)), frame),
    );
    expect(differingFrames).toEqual([]);
    // A changed kind, text length or list length is rejected.
    const numChanges = frames.reduce((sum, { bytes }) => sum + 3 * (bytes.length - 4), 0);
    expect(acceptedFrames.length).toBeLessThan(numChanges - 3 * frames.length);
  });

  it("rejects invalid lengths, numbers of ranks, trailing bytes and unknown types", () => {
    const cancelJoin = encode({ kind: "cancelJoin", world: 0, ranks: [[0, 1]] }).subarray(4);
    const replaceWord = (offset: number, value: number): Buffer => {
      const copy = Buffer.from(cancelJoin);
      copy.writeUInt32LE(value, offset);
      return copy;
    };
    expect(() => decode(replaceWord(5, 2 ** 31))).toThrow(
      /expected a list that fits in its frame, received a list of \d+ elements/,
    );
    expect(() => decode(replaceWord(13, LIMITS.ranks + 1))).toThrow(/received \d+ ranks starting at rank/);
    expect(() => decode(replaceWord(13, 0))).toThrow(/received 0 ranks/);
    expect(() => decode(Buffer.concat([cancelJoin, Buffer.of(0)]))).toThrow(
      /expected the end of the cancelJoin frame after its last field, received 1 more bytes/,
    );
    expect(() => decode(Buffer.of(99))).toThrow(/expected a known frame type, received 99/);
    const endlessReader = new FrameReader();
    endlessReader.push(Buffer.of(0xff, 0xff, 0xff, 0xff));
    expect(() => endlessReader.next()).toThrow(/expected a frame of 1 to 4096 bytes/);
  });

  it("truncates long texts to whole characters when a frame is encoded", () => {
    for (const character of ["x", "é", "€", "😀"]) {
      for (const start of ["", "x", "xx", "xxx"]) {
        const reason = start + character.repeat(3000);
        const frame = decode(encode({ kind: "closed", world: 0, reason }).subarray(4));
        const numCharacters = Math.floor((LIMITS.text - start.length) / Buffer.byteLength(character));
        expect(frame).toEqual({ kind: "closed", world: 0, reason: start + character.repeat(numCharacters) });
      }
    }
    const longest = "é".repeat(LIMITS.text / 2);
    expect(decode(encode({ kind: "closed", world: 0, reason: longest }).subarray(4))).toMatchObject({
      reason: longest,
    });
  });
});

describe("rank ranges", () => {
  it("expand to the ranks from which they were created", () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.nat(200)), (ranks) => {
        const sorted = ranks.toSorted((a, b) => a - b);
        expect([...expandRankRanges(toRankRanges(ranks))]).toEqual(sorted);
        expect(countRanks(toRankRanges(ranks))).toBe(ranks.length);
      }),
    );
  });

  it("have the union, intersection, difference and membership of sets", () => {
    const ranks = fc.uniqueArray(fc.nat(40));
    fc.assert(
      fc.property(ranks, ranks, fc.nat(41), (a, b, rank) => {
        const [x, y] = [toRankRanges(a), toRankRanges(b)];
        expect(unionRankRanges([x, y])).toEqual(toRankRanges(new Set([...a, ...b])));
        expect(unionRankRanges([a.map((each) => [each, 1] as const)])).toEqual(x);
        expect(intersectRankRanges(x, y)).toEqual(toRankRanges(a.filter((each) => b.includes(each))));
        expect(subtractRankRanges(x, y)).toEqual(toRankRanges(a.filter((each) => !b.includes(each))));
        expect(includesRank(x, rank)).toBe(a.includes(rank));
      }),
    );
  });

  it("are formatted as a short list", () => {
    expect(formatRankRanges([2])).toBe("rank 2");
    expect(formatRankRanges([5, 2])).toBe("ranks 2, 5");
    expect(formatRankRanges([7, 5, 6])).toBe("ranks 5-7");
    const alternatingRanks = Array.from({ length: 40 }, (_, i) => 2 * i);
    expect(formatRankRanges(alternatingRanks)).toMatch(/^ranks 0, 2, .*, 30 and 24 more$/);
  });
});
