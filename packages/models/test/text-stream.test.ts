import { expect, test } from "vitest";
import { TextStream } from "../src/generate/text-stream.ts";

/** A tokenizer whose ids are bytes of UTF-8. */
const bytes = { decode: (ids: readonly number[]) => new TextDecoder().decode(Uint8Array.from(ids)) };
const encode = (text: string): number[] => [...new TextEncoder().encode(text)];

/** What a stream gives for each token, up to a stop string. */
function streamPieces(
  text: string,
  stopStrings: readonly string[] = [],
): { texts: string[]; isStopped: boolean; remainingText: string } {
  const stream = new TextStream(bytes, encode("prompt"), stopStrings);
  const texts: string[] = [];
  for (const token of encode(text)) {
    const textPiece = stream.push(token);
    texts.push(textPiece.text);
    if (textPiece.isStopped) return { texts, isStopped: true, remainingText: "" };
  }
  return { texts, isStopped: false, remainingText: stream.flush() };
}

test("a character of several tokens comes with the last", () => {
  expect(streamPieces("a🙂é").texts).toEqual(["a", "", "", "", "🙂", "", "é"]);
});

test("an incomplete character comes at the end, as what stands for it", () => {
  const stream = new TextStream(bytes, []);
  expect(
    encode("🙂")
      .slice(0, 2)
      .map((token) => stream.push(token).text),
  ).toEqual(["", ""]);
  expect(stream.flush()).toBe("\uFFFD");
});

test("bytes that are no character do not hold up what follows", () => {
  const stream = new TextStream(bytes, []);
  const texts = [0xff, 0xff, 0xff, 0xff, ...encode("ab")].map((token) => stream.push(token).text);
  expect(texts.join("")).toBe("\uFFFD\uFFFD\uFFFD\uFFFDab");
});

test("text before a stop string is returned, the string and what follows is not", () => {
  const { texts, isStopped } = streamPieces("one\n\ntwo", ["\n\n"]);
  expect(texts.join("")).toBe("one");
  expect(isStopped).toBe(true);
});

test("what may become a stop string is held back until it is not", () => {
  expect(streamPieces("ab stop", ["abc"]).texts).toEqual(["", "", "ab ", "s", "t", "o", "p"]);
  expect(streamPieces("xab", ["abc"])).toMatchObject({ remainingText: "ab", isStopped: false });
});

test("the first of several stop strings ends the text", () => {
  expect(streamPieces("a</s>b<end>", ["<end>", "</s>"]).texts.join("")).toBe("a");
});
