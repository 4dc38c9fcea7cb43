import fc from "fast-check";
import { expect, test } from "vitest";
import { TextStream } from "../src/generate/text-stream.ts";

/** A tokenizer whose ids are bytes of UTF-8. */
const bytes = {
  decode: (ids: readonly number[]) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(ids)),
};
const encode = (text: string): number[] => [...new TextEncoder().encode(text)];

/** A token that, like special tokens, is omitted at any position. */
const SPECIAL_TOKEN = 256;
const bytesAndSpecialTokens = {
  decode: (ids: readonly number[]) => bytes.decode(ids.filter((id) => id < SPECIAL_TOKEN)),
};

/**
 * A tokenizer with byte fallback, whose ids below 256 are bytes and whose other ids are code points plus 256. As in
 * Python's tokenizers, each byte of a run that is not valid UTF-8 is decoded to U+FFFD.
 */
const byteFallback = {
  decode(ids: readonly number[]): string {
    const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    const runs = ids.reduce<number[][]>((all, id) => {
      const lastRun = all.at(-1);
      if (id < 256 && lastRun && lastRun[0]! < 256) lastRun.push(id);
      else all.push([id]);
      return all;
    }, []);
    const decodeRun = (run: readonly number[]): string => {
      if (run[0]! >= 256) return String.fromCodePoint(run[0]! - 256);
      try {
        return utf8.decode(Uint8Array.from(run));
      } catch {
        return "\uFFFD".repeat(run.length);
      }
    };
    return runs.map(decodeRun).join("");
  },
};

/** Returns the text of a stream for each token, up to a stop string. */
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

test("a character of several tokens is returned with its last token", () => {
  expect(streamPieces("a🙂é").texts).toEqual(["a", "", "", "", "🙂", "", "é"]);
});

test("an incomplete character is returned by flush as a replacement character", () => {
  const stream = new TextStream(bytes, []);
  expect(
    encode("🙂")
      .slice(0, 2)
      .map((token) => stream.push(token).text),
  ).toEqual(["", ""]);
  expect(stream.flush()).toBe("\uFFFD");
});

test("invalid bytes do not hold back the text that follows", () => {
  const stream = new TextStream(bytes, []);
  const texts = [0xff, 0xff, 0xff, 0xff, ...encode("ab")].map((token) => stream.push(token).text);
  expect(texts.join("")).toBe("\uFFFD\uFFFD\uFFFD\uFFFDab");
});

test("invalid bytes before a character do not split it", () => {
  const stream = new TextStream(bytes, []);
  const texts = [0xf0, 0x9f, ...encode("😀"), ...encode("a")].map((token) => stream.push(token).text);
  expect(texts).toEqual(["", "", "", "", "", "\uFFFD😀", "a"]);
});

test("a character that begins in the prompt is returned whole", () => {
  const [first, second, ...otherBytes] = encode("😀");
  const stream = new TextStream(bytes, [...encode("a"), first!, second!]);
  expect([...otherBytes, ...encode("b")].map((token) => stream.push(token).text)).toEqual(["", "😀", "b"]);
});

test("pieces of any tokens join to the text of all tokens, and each push decodes only the last tokens", () => {
  // Bytes that start, continue and end characters of any length, complete characters, and tokens without text.
  const token = fc.oneof(
    fc.nat(255).map((byte) => [byte]),
    fc.constantFrom(0x80, 0x84, 0xbd, 0xbf, 0xc3, 0xe4, 0xed, 0xef, 0xf0, 0xf4, 0xff).map((byte) => [byte]),
    fc.constantFrom("a", "é", "你", "😀", "\uFFFD", "\uFEFF").map(encode),
    fc.constant([SPECIAL_TOKEN]),
  );
  const tokenLists = fc.array(token, { maxLength: 120, size: "max" }).map((lists) => lists.flat());
  let longest = 0;
  const decoder = {
    decode(ids: readonly number[]): string {
      longest = Math.max(longest, ids.length);
      return bytesAndSpecialTokens.decode(ids);
    },
  };
  fc.assert(
    fc.property(tokenLists, fc.nat(40), (ids, promptLength) => {
      const prompt = [...ids.slice(0, promptLength), ...encode("p")];
      const stream = new TextStream(decoder, prompt);
      longest = 0;
      const newIds = ids.slice(promptLength);
      const text = newIds.map((id) => stream.push(id).text).join("") + stream.flush();
      expect(text).toBe(bytesAndSpecialTokens.decode(newIds));
      expect(longest).toBeLessThanOrEqual(17);
    }),
    {
      numRuns: 2000,
      // Tokens without text within a character of the prompt.
      examples: [[[0xef, ...Array<number>(7).fill(SPECIAL_TOKEN), 0x80, 0x80, SPECIAL_TOKEN, ...encode("abcdef")], 11]],
    },
  );
});

test.each([
  ["bytes of UTF-8", bytes],
  ["byte fallback", byteFallback],
])("characters after a prompt that ends anywhere are returned with their last tokens: %s", (name, decoder) => {
  const character = fc.constantFrom("a", " ", "é", "你", "😀");
  const characters = fc.array(fc.tuple(character, fc.boolean()), { minLength: 1, maxLength: 40, size: "max" });
  fc.assert(
    fc.property(characters, fc.nat(), (pairs, number) => {
      const tokens = pairs.flatMap(([text, isByteRun]) => {
        if (isByteRun || name === "bytes of UTF-8")
          return encode(text).map((id, i, all) => ({ id, text: i === all.length - 1 ? text : "" }));
        return [{ id: text.codePointAt(0)! + 256, text }];
      });
      const promptLength = number % (tokens.length + 1);
      const stream = new TextStream(
        decoder,
        tokens.slice(0, promptLength).map(({ id }) => id),
      );
      const newTokens = tokens.slice(promptLength);
      expect(newTokens.map(({ id }) => stream.push(id).text)).toEqual(newTokens.map(({ text }) => text));
      expect(stream.flush()).toBe("");
    }),
    { numRuns: 1000 },
  );
});

test("an incomplete character of the prompt is not returned if no token completes it", () => {
  const stream = new TextStream(bytes, [...encode("a"), 0xf0]);
  expect([0x9f, ...encode("b")].map((token) => stream.push(token).text)).toEqual(["", "b"]);
});

test("each push decodes a bounded number of tokens of a run of bytes that is invalid as a whole", () => {
  let longest = 0;
  const decoder = {
    decode(ids: readonly number[]): string {
      longest = Math.max(longest, ids.length);
      return byteFallback.decode(ids);
    },
  };
  const stream = new TextStream(decoder, []);
  const texts = [0xff, ...encode("a".repeat(300))].map((token) => stream.push(token).text);
  expect(texts.join("") + stream.flush()).toMatch(/^\uFFFD+a+$/);
  expect(texts.join("") + stream.flush()).toHaveLength(301);
  expect(longest).toBeLessThanOrEqual(65);
});

test("text before a stop string is returned, but not the stop string", () => {
  const { texts, isStopped } = streamPieces("one\n\ntwo", ["\n\n"]);
  expect(texts.join("")).toBe("one");
  expect(isStopped).toBe(true);
});

test("text that may begin a stop string is held back until it no longer can", () => {
  expect(streamPieces("ab stop", ["abc"]).texts).toEqual(["", "", "ab ", "s", "t", "o", "p"]);
  expect(streamPieces("xab", ["abc"])).toMatchObject({ remainingText: "ab", isStopped: false });
});

test("the stop string that occurs first ends the text", () => {
  expect(streamPieces("a</s>b<end>", ["<end>", "</s>"]).texts.join("")).toBe("a");
  // Both in one token.
  const stream = new TextStream({ decode: (ids) => ids.map(() => "a</s>b<end>").join("") }, [], ["<end>", "</s>"]);
  expect(stream.push(0)).toEqual({ text: "a", isStopped: true });
});
