import { readFileSync } from "node:fs";

/** A frame of docs/control-plane.md. Its bytes include the length. */
export interface TestFrame {
  readonly kind: string;
  readonly fields: Record<string, unknown>;
  readonly bytes: Buffer;
}

const document = readFileSync(new URL("../../../../docs/control-plane.md", import.meta.url), "utf8");

/** The ```frame blocks of docs/control-plane.md. */
export const testFrames: readonly TestFrame[] = [...document.matchAll(/^```frame\n(.*)\n([0-9a-f \n]+)\n```$/gm)].map(
  ([, json = "", hex = ""]) => {
    const { kind, ...fields } = JSON.parse(json) as { kind: string };
    return { kind, fields, bytes: Buffer.from(hex.replace(/\s/g, ""), "hex") };
  },
);

/** Returns a generator of numbers in [0, 1), determined by a seed (mulberry32). */
export function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Returns a frame that is unchanged, truncated or repeated, has changed bytes, length or type, or is random bytes. */
export function mutateFrame(random: () => number): Buffer {
  const pickInteger = (count: number): number => Math.floor(random() * count);
  const bytes = Buffer.from(testFrames[pickInteger(testFrames.length)]!.bytes);
  switch (pickInteger(7)) {
    case 0:
      return bytes;
    case 1:
      for (let i = pickInteger(4); i >= 0; i--) bytes[4 + pickInteger(bytes.length - 4)] = pickInteger(256);
      return bytes;
    case 2:
      bytes.writeUInt32LE(pickInteger(3) === 0 ? pickInteger(2 ** 32) : pickInteger(2 * bytes.length));
      return bytes;
    case 3:
      return bytes.subarray(0, pickInteger(bytes.length));
    case 4:
      bytes[4] = pickInteger(32);
      return bytes;
    case 5: {
      // Overwrites 32 bits at a random offset, to change counts, ranks or world numbers.
      const offset = 5 + pickInteger(Math.max(1, bytes.length - 9));
      if (offset + 4 <= bytes.length)
        bytes.writeUInt32LE([0, 1, 0xffff_ffff, 0x8000_0000, 65_536][pickInteger(5)]!, offset);
      return bytes;
    }
    default:
      return Buffer.from(Array.from({ length: pickInteger(64) }, () => pickInteger(256)));
  }
}
