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
  test("texts become the ids that Python's tokenizers gives, and back", async () => {
    const { tokenizer, expected } = await openTokenizer(name);
    for (const { text, ids, plain, decoded, shown } of expected.texts) {
      expect(tokenizer.encode(text), text).toEqual(ids);
      expect(tokenizer.encode(text, { addSpecialTokens: false }), text).toEqual(plain);
      expect(tokenizer.decode(ids), text).toBe(decoded);
      expect(tokenizer.decode(ids, { skipSpecialTokens: false }), text).toBe(shown);
    }
  });

  test("conversations become the texts that transformers gives", async () => {
    const { tokenizer, expected } = await openTokenizer(name);
    for (const { messages, variables, text } of expected.chats) {
      const { add_generation_prompt: addGenerationPrompt, ...otherVariables } = variables as {
        add_generation_prompt: boolean;
      };
      expect(tokenizer.applyChatTemplate(messages, { addGenerationPrompt, variables: otherVariables })).toBe(text);
    }
  });

  test("a stream of tokens gives the text of all of them", async () => {
    const { tokenizer, expected } = await openTokenizer(name);
    for (const { ids } of expected.texts) {
      const [prompt, remainingIds] = [ids.slice(0, 2), ids.slice(2)];
      const stream = new TextStream(tokenizer, prompt);
      const textPieces = remainingIds.map((id) => stream.push(id).text);
      // A character that the prompt began is new.
      const promptText = tokenizer.decode(prompt).replace(/\uFFFD+$/, "");
      expect(textPieces.join("") + stream.flush()).toBe(tokenizer.decode(ids).slice(promptText.length));
    }
  });
});
