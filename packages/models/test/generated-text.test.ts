import { expect, test } from "vitest";
import { GeneratedText, type TextPlan } from "../src/generate/generated-text.ts";
import type { Tokenizer } from "../src/index.ts";

/** The bytes of each token. The last one is a stop string and the first byte of a character. */
const tokenBytes = [[0x61], [0x62], [0xf0, 0x9f, 0x98, 0x80], [0x2e, 0xf0]] as const;
const tokenizer = {
  decode: (ids: readonly number[]) => new TextDecoder().decode(Uint8Array.from(ids.flatMap((id) => tokenBytes[id]!))),
} as Tokenizer;

const createText = (fields: Partial<TextPlan>): Promise<GeneratedText> => {
  const greedy = { doSample: false, temperature: 1, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1 };
  const plan = { prompt: [0], maxNewTokens: 4, settings: greedy, stopStrings: [], eosTokenIds: [], seed: 0, ...fields };
  // Without sampling, the context is not used.
  return GeneratedText.create({ ctx: undefined as never, tokenizer }, plan);
};

/** Returns logits of which that of `token` is the largest. */
const favor = (token: number) => Float32Array.from(tokenBytes, (_, id) => (id === token ? 2 : 1));

test("the repetition penalty applies to the prompt and to the tokens generated so far", async () => {
  const settings = { doSample: false, temperature: 1, topK: 0, topP: 1, minP: 0, repetitionPenalty: 10 };
  const text = await createText({ settings });
  const logits = () => Float32Array.of(4, 3, 2, 1);
  const tokens = [1, 2, 3].map(() => text.add(logits()).token);
  expect(tokens).toEqual([1, 2, 3]);
});

test("text after a stop string is not returned, even if it is an incomplete character", async () => {
  const text = await createText({ stopStrings: ["."] });
  expect(text.add(favor(1))).toMatchObject({ text: "b", finishReason: null });
  expect(text.add(favor(3))).toMatchObject({ text: "", finishReason: "stop" });
});

test("the last token returns text that was held back", async () => {
  const text = await createText({ stopStrings: ["bb"], maxNewTokens: 2 });
  expect(text.add(favor(0))).toMatchObject({ text: "a", finishReason: null });
  expect(text.add(favor(1))).toMatchObject({ text: "b", finishReason: "length" });
});
