import { expect, test } from "vitest";
import { attentionSeconds } from "../../src/time/kernel-time.ts";
import { linkClass, parseProfile, type Profile, profiles } from "../../src/index.ts";

test.each(Object.entries(profiles))("%s has its own name and is unchanged after a JSON round trip", (name, profile) => {
  expect(profile.name).toBe(name);
  expect(parseProfile(JSON.stringify(profile))).toEqual(profile);
});

test("linkClass depends on whether two ranks are equal, on one node, or on different nodes", () => {
  const topology = { ranksPerNode: 4 };
  expect(linkClass(topology, 5, 5)).toBe("self");
  expect(linkClass(topology, 4, 7)).toBe("intra-node");
  expect(linkClass(topology, 3, 4)).toBe("inter-node");
});

const h100 = profiles["h100-ib400"];
const link = h100.links["inter-node"];
const invalidProfiles: readonly (readonly [string, unknown, string])[] = [
  ["no JSON", "{", "profile: expected JSON"],
  ["no object", "[1]", "profile: expected an options object with name, received [1]"],
  ["no name", { ...h100, name: 7 }, "profile: name: expected a name, received 7"],
  ["an unknown field", { ...h100, speed: 1 }, "profile h100-ib400: expected options among name"],
  [
    "no links",
    { ...h100, links: undefined },
    "profile h100-ib400: links: expected { self, intra-node, inter-node }, received undefined",
  ],
  [
    "a link without bandwidth",
    { ...h100, links: { ...h100.links, "inter-node": { ...link, bandwidth: 0 } } },
    "profile h100-ib400: links: inter-node: bandwidth: expected a number > 0, received 0",
  ],
  [
    "a time below zero",
    { ...h100, links: { ...h100.links, self: { ...link, latency: -1 } } },
    "links: self: latency: expected a number ≥ 0, received -1",
  ],
  ["half a rank", { ...h100, ranksPerNode: 0.5 }, "ranksPerNode: expected an integer ≥ 1, received 0.5"],
  [
    "all compute taxed away",
    { ...h100, communicationTax: 1 },
    "communicationTax: expected a number ≥ 0 and < 1, received 1",
  ],
  [
    "an unknown algorithm",
    { ...h100, collectives: "tree" },
    'collectives: expected "direct" or "ring", received "tree"',
  ],
  ["text for a number", { ...h100, enqueue: "1" }, 'enqueue: expected a number ≥ 0, received "1"'],
  [
    "an unknown dtype",
    { ...h100, kernels: { ...h100.kernels, attend: { float8: {} } } },
    'kernels: attend: expected options among float32, bfloat16, float16, received "float8"',
  ],
  [
    "a speed without flops",
    {
      ...h100,
      kernels: { ...h100.kernels, attend: { float32: { halfSpeedRows: 0, halfSpeedKeys: 0, halfSpeedHeadDim: 0 } } },
    },
    "kernels: attend: float32: flops: expected a number > 0, received undefined",
  ],
];

test.each(invalidProfiles)("parseProfile rejects %s and names the place", (_, invalidProfile, message) => {
  const text = typeof invalidProfile === "string" ? invalidProfile : JSON.stringify(invalidProfile);
  expect(() => parseProfile(text)).toThrow(message);
});

/**
 * Returns the TFLOP/s of square tiles with 16k tokens in all and 2048 numbers per token, as the FlashAttention papers
 * measure them.
 */
function computeTflops(profile: Profile, kind: "attend" | "attendBackward", headDim: number, length: number): number {
  const numHeads = (16_384 / length) * (2048 / headDim);
  const work = { dtype: "float16", headDim, numHeads, rows: length, keys: length, pairs: length ** 2 } as const;
  const flops = (kind === "attend" ? 4 : 10) * headDim * numHeads * length ** 2;
  return flops / attentionSeconds(profile.kernels, kind, work) / 1e12;
}

// FlashAttention-3, figures 5 and 6: H100, FP16, no mask.
const publishedTflops: readonly (readonly ["attend" | "attendBackward", number, readonly number[]])[] = [
  ["attend", 128, [467, 565, 625, 638, 646, 648]],
  ["attend", 64, [333, 392, 460, 476, 496, 497]],
  ["attendBackward", 128, [316, 424, 501, 542, 559, 561]],
  ["attendBackward", 64, [272, 363, 422]],
];

test.each(publishedTflops)(
  "h100: %s with heads of %d is within 11 %% of FlashAttention-3 at every length",
  (kind, d, speeds) => {
    for (const [i, speed] of speeds.entries()) {
      expect(Math.abs(computeTflops(h100, kind, d, 512 * 2 ** i) / speed - 1)).toBeLessThan(0.11);
    }
  },
);

test("a100: long sequences reach the speed that FlashAttention-2 reports", () => {
  const a100 = profiles["a100-ib200"];
  expect(computeTflops(a100, "attend", 128, 16_384)).toBeCloseTo(230, -1);
  expect(computeTflops(a100, "attendBackward", 128, 16_384) / 312).toBeCloseTo(0.63, 2);
});

test("interleaved heads take longer only where a profile has a factor for them", () => {
  const { kernels } = profiles["cpu-local"];
  const tile = { dtype: "float32", headDim: 64, numHeads: 4, rows: 512, keys: 512, pairs: 512 ** 2 } as const;
  const [denseSeconds, interleavedSeconds] = [false, true].map((isInterleaved) =>
    attentionSeconds(kernels, "attend", { ...tile, interleaved: isInterleaved }),
  );
  expect(interleavedSeconds! / denseSeconds!).toBeCloseTo(kernels.attend.float32!.interleaved!, 3);
  const bfloat16Tile = { ...tile, dtype: "bfloat16", interleaved: true } as const;
  expect(attentionSeconds(h100.kernels, "attend", bfloat16Tile)).toBe(
    attentionSeconds(h100.kernels, "attend", { ...bfloat16Tile, interleaved: false }),
  );
});

test("a call without visible pairs costs its launch, and a call with few rows costs a whole wave", () => {
  const { kernels } = h100;
  const tile = { dtype: "bfloat16", headDim: 128, numHeads: 1, rows: 128, keys: 4096, pairs: 128 * 4096 } as const;
  expect(attentionSeconds(kernels, "attend", { ...tile, pairs: 0 })).toBe(kernels.launch);
  const oneHeadSeconds = attentionSeconds(kernels, "attend", tile);
  expect(attentionSeconds(kernels, "attend", { ...tile, numHeads: 132 })).toBeCloseTo(oneHeadSeconds, 9);
  expect(attentionSeconds(kernels, "attend", { ...tile, numHeads: 133 }) - kernels.launch).toBeCloseTo(
    2 * (oneHeadSeconds - kernels.launch),
    9,
  );
});
