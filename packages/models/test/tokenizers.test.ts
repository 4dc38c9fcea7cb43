import { readFile } from "node:fs/promises";
import { describe, expect, test } from "vitest";
import { type ChatMessage, Tokenizer } from "../src/index.ts";
import { TextStream } from "../src/generate/text-stream.ts";
import { pathOf } from "./reference/references.ts";

interface Expected {
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

async function open(name: string): Promise<{ tokenizer: Tokenizer; expected: Expected }> {
  const read = (file: string) => readFile(pathOf(`tokenizers/${name}/${file}`), "utf8");
  const json = async (file: string) => JSON.parse(await read(file)) as Readonly<Record<string, unknown>>;
  const files = {
    tokenizer: await json("tokenizer.json"),
    config: await json("tokenizer_config.json"),
    chatTemplate: await read("chat_template.jinja"),
  };
  return { tokenizer: new Tokenizer(name, files), expected: (await json("expected.json")) as unknown as Expected };
}

describe.each(["byte-level", "byte-fallback", "unigram"])("%s", (name) => {
  test("texts become the ids that Python's tokenizers gives, and back", async () => {
    const { tokenizer, expected } = await open(name);
    for (const { text, ids, plain, decoded, shown } of expected.texts) {
      expect(tokenizer.encode(text), text).toEqual(ids);
      expect(tokenizer.encode(text, { addSpecialTokens: false }), text).toEqual(plain);
      expect(tokenizer.decode(ids), text).toBe(decoded);
      expect(tokenizer.decode(ids, { skipSpecialTokens: false }), text).toBe(shown);
    }
  });

  test("conversations become the texts that transformers gives", async () => {
    const { tokenizer, expected } = await open(name);
    for (const { messages, variables, text } of expected.chats) {
      const { add_generation_prompt: addGenerationPrompt, ...rest } = variables as { add_generation_prompt: boolean };
      expect(tokenizer.applyChatTemplate(messages, { addGenerationPrompt, variables: rest })).toBe(text);
    }
  });

  test("a stream of tokens gives the text of all of them", async () => {
    const { tokenizer, expected } = await open(name);
    for (const { ids } of expected.texts) {
      const [prompt, rest] = [ids.slice(0, 2), ids.slice(2)];
      const stream = new TextStream(tokenizer, prompt);
      const pieces = rest.map((id) => stream.push(id).text);
      expect(pieces.join("") + stream.flush()).toBe(tokenizer.decode(ids).slice(tokenizer.decode(prompt).length));
    }
  });
});
