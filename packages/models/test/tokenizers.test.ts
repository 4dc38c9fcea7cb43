import { readFile } from "node:fs/promises";
import { describe, expect, test } from "vitest";
import { type ChatMessage, Tokenizer } from "../src/index.ts";
import { TextStream } from "../src/generate/text-stream.ts";
import { resolvePath } from "./reference/references.ts";

interface ExpectedTokens {
  readonly texts: readonly {
    readonly text: string;
    readonly ids: readonly number[];
    readonly plain: readonly number[];
    readonly decoded: string;
    readonly shown: string;
  }[];
  readonly chats: readonly {
    readonly messages: readonly ChatMessage[];
    readonly variables: Readonly<Record<string, unknown>>;
    readonly text: string;
  }[];
}

async function openTokenizer(name: string): Promise<{ tokenizer: Tokenizer; expected: ExpectedTokens }> {
  const readTokenizerFile = (file: string) => readFile(resolvePath(`tokenizers/${name}/${file}`), "utf8");
  const json = async (file: string) => JSON.parse(await readTokenizerFile(file)) as Readonly<Record<string, unknown>>;
  const files = {
    tokenizer: await json("tokenizer.json"),
    config: await json("tokenizer_config.json"),
    chatTemplate: await readTokenizerFile("chat_template.jinja"),
  };
  return {
    tokenizer: new Tokenizer(name, files),
    expected: (await json("expected.json")) as unknown as ExpectedTokens,
  };
}

describe.each(["byte-level", "byte-fallback", "unigram"])("%s", (name) => {
  test("encodes and decodes texts like Python's tokenizers", async () => {
    const { tokenizer, expected } = await openTokenizer(name);
    for (const { text, ids, plain, decoded, shown } of expected.texts) {
      expect(tokenizer.encode(text), text).toEqual(ids);
      expect(tokenizer.encode(text, { addSpecialTokens: false }), text).toEqual(plain);
      expect(tokenizer.decode(ids), text).toBe(decoded);
      expect(tokenizer.decode(ids, { skipSpecialTokens: false }), text).toBe(shown);
    }
  });

  test("formats conversations like transformers", async () => {
    const { tokenizer, expected } = await openTokenizer(name);
    for (const { messages, variables, text } of expected.chats) {
      const { add_generation_prompt: addGenerationPrompt, ...otherVariables } = variables as {
        add_generation_prompt: boolean;
      };
      expect(tokenizer.applyChatTemplate(messages, { addGenerationPrompt, variables: otherVariables })).toBe(text);
    }
  });

  test("streams the text of all tokens", async () => {
    const { tokenizer, expected } = await openTokenizer(name);
    for (const { ids } of expected.texts) {
      const [prompt, remainingIds] = [ids.slice(0, 2), ids.slice(2)];
      const stream = new TextStream(tokenizer, prompt);
      const textPieces = remainingIds.map((id) => stream.push(id).text);
      // A character that begins in the prompt belongs to the new text.
      const promptText = tokenizer.decode(prompt).replace(/\uFFFD+$/, "");
      expect(textPieces.join("") + stream.flush()).toBe(tokenizer.decode(ids).slice(promptText.length));
    }
  });

  test("decodes ids of a model's padded vocabulary to no text, like Python's tokenizers", async () => {
    const { tokenizer, expected } = await openTokenizer(name);
    const unknownId = tokenizer.vocabSize() + 7;
    for (const { ids, decoded, shown } of expected.texts) {
      // Unknown ids also come between the bytes of a character.
      const paddedIds = ids.flatMap((id) => [unknownId, id]);
      expect(tokenizer.decode(paddedIds)).toBe(decoded);
      expect(tokenizer.decode(paddedIds, { skipSpecialTokens: false })).toBe(shown);
    }
    expect(tokenizer.decode([unknownId])).toBe("");
  });
});

describe("a tokenizer with byte fallback", () => {
  const toIds = (tokenizer: Tokenizer, bytes: Iterable<number>): number[] =>
    Array.from(bytes, (byte) => tokenizer.tokenId(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`)!);
  const encodeText = (text: string): Uint8Array => new TextEncoder().encode(text);

  // The results of Python's tokenizers 0.23.2.
  test.each([
    ["a run that is not UTF-8 as a whole", [0x44, 0x22, 0x84], "\uFFFD\uFFFD\uFFFD"],
    ["a character that is not complete, after another", encodeText("é你").slice(0, 4), "\uFFFD\uFFFD\uFFFD\uFFFD"],
    ["characters", encodeText("你é😀"), "你é😀"],
    ["a byte order mark", encodeText("\uFEFFa"), "\uFEFFa"],
  ])("decodes the bytes of %s like Python's tokenizers", async (_, bytes, text) => {
    const { tokenizer } = await openTokenizer("byte-fallback");
    expect(tokenizer.decode(toIds(tokenizer, bytes))).toBe(text);
  });

  test("continues a run of bytes after a skipped special token", async () => {
    const { tokenizer } = await openTokenizer("byte-fallback");
    const [first, ...otherIds] = toIds(tokenizer, encodeText("你"));
    const ids = [first!, tokenizer.tokenId("<|end|>")!, ...otherIds];
    expect(tokenizer.decode(ids)).toBe("你");
    expect(tokenizer.decode(ids, { skipSpecialTokens: false })).toBe("\uFFFD<|end|>\uFFFD\uFFFD");
  });

  test("streams each character with its last byte", async () => {
    const { tokenizer } = await openTokenizer("byte-fallback");
    const stream = new TextStream(tokenizer, toIds(tokenizer, encodeText("é你")).slice(0, 3));
    const ids = toIds(tokenizer, [...encodeText("你").slice(1), ...encodeText("😀é"), 0x84]);
    const texts = ids.map((id) => stream.push(id).text);
    expect(texts).toEqual(["", "你", "", "", "", "😀", "", "é", ""]);
    expect(stream.flush()).toBe("\uFFFD");
  });
});
