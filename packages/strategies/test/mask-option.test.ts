import { type Mask, masks, resolveSlices } from "@mosaic/core";
import { expect, test } from "vitest";
import { maskUsages, parseMask } from "../src/cli/mask.ts";

const { and, causal, documents, globalTokens, or, shareQuestion, slidingWindow } = masks;

test.each<[text: string, mask: Mask]>([
  ["full", masks.full()],
  ["causal", causal()],
  ["inverseCausal", masks.inverseCausal()],
  ["bidirectionalCausal", masks.bidirectionalCausal()],
  ["slidingWindow:300", slidingWindow(300)],
  ["slidingWindow:1k", slidingWindow(1024)],
  ["slidingWindow:100:0", slidingWindow({ left: 100, right: 0 })],
  ["slidingWindow:0:20", slidingWindow({ left: 0, right: 20 })],
  ["prefix:128", masks.prefix(128)],
  ["blockCausal:0.5k", masks.blockCausal(512)],
  ["globalTokens:4", globalTokens(4)],
  ["globalTokens:4:queries", globalTokens(4, { queries: true })],
  ["documents:1k,512,2x256", documents([1024, 512, 256, 256])],
  ["documents:2x1k:causal", documents([1024, 1024], "causal")],
  ["documents:2x1k:slidingWindow:64:32", documents([1024, 1024], slidingWindow({ left: 64, right: 32 }))],
  ["documents:2x1k:documents:512,512:causal", documents([512, 512, 512, 512], "causal")],
  ["shareQuestion:1k:512,2x256", shareQuestion(1024, [512, 256, 256])],
  ["shareQuestion:0:1k,1k", shareQuestion(0, [1024, 1024])],
  ["slidingWindow:64+globalTokens:4", or(slidingWindow(64), globalTokens(4))],
  ["causal&documents:2x1k", and(causal(), documents([1024, 1024]))],
  ["slidingWindow:64+causal&globalTokens:4", or(slidingWindow(64), and(causal(), globalTokens(4)))],
])("parseMask accepts %s", (text, mask) => {
  const parsedMask = parseMask(text);
  expect(resolveSlices(parsedMask, 2048, 2048)).toEqual(resolveSlices(mask, 2048, 2048));
  if (!text.includes("documents:2x1k:documents")) expect(parsedMask.name).toContain(mask.name.replace(/\(.*/, ""));
});

test("parseMask accepts every form that the help lists", () => {
  const values: Readonly<Record<string, string>> = { N: "64", LEFT: "3", RIGHT: "4", LENGTHS: "3x4,5", MASK: "causal" };
  for (const usage of maskUsages) {
    const text = usage.replaceAll(/\b[A-Z]+\b/g, (name) => values[name]!);
    expect(parseMask(text).name).toContain(usage.split(":")[0]);
  }
});
