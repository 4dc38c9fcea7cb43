import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type ChatMessage, loadTokenizer, Tokenizer } from "../src/index.ts";
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

describe("minTokens", () => {
  const texts = [
    ...[
      "",
      "a",
      "It's 1 234 567 items  \n\n of   a sea",
      "ﬁ ö e\u0301 e\u0323\u0302 \u1100\u1161",
      "日本語 😀👩‍👩‍👧",
      "\ud800",
    ],
    ...["<|endoftext|>".repeat(3), " ".repeat(400), "na".repeat(300), "<s> x </s>"],
  ];

  test.each(["byte-level", "byte-fallback", "unigram"])("is at most the number of tokens: %s", async (name) => {
    const { tokenizer, expected } = await openTokenizer(name);
    for (const text of [...texts, ...expected.texts.map((each) => each.text)]) {
      const numTokens = tokenizer.encode(text, { addSpecialTokens: false }).length;
      expect(tokenizer.minTokens(text), text).toBeLessThanOrEqual(numTokens);
    }
    // Only a byte-level tokenizer has a token for each byte.
    expect(tokenizer.minTokens("na".repeat(300)) > 0).toBe(name === "byte-level");
    expect(() => tokenizer.minTokens(3 as never)).toThrow(/Tokenizer.minTokens: expected a string, received 3/);
  });

  test("is the bytes divided by those of the longest token, or 0 if a part of the text may be omitted", async () => {
    const path = resolvePath("tokenizers/byte-level/tokenizer.json");
    const json = JSON.parse(await readFile(path, "utf8")) as Readonly<Record<string, unknown>>;
    const model = json.model as { readonly vocab: Readonly<Record<string, number>> };
    const count = (fields: object, text = "ab".repeat(500)) =>
      new Tokenizer("tokenizer.json", { tokenizer: { ...json, added_tokens: [], ...fields }, config: {} }).minTokens(
        text,
      );
    const longest = Math.max(...Object.keys(model.vocab).map((token) => token.length));
    const addedToken = { id: 5000, content: "é".repeat(50), special: true, lstrip: false, rstrip: false };
    const byteLevel = { type: "ByteLevel", add_prefix_space: false, use_regex: true };
    expect(count({})).toBe(Math.ceil(1000 / longest));
    expect(count({ added_tokens: [addedToken] })).toBe(10);
    expect(count({ normalizer: { type: "NFC" } })).toBe(Math.ceil(1000 / longest));
    expect(count({ normalizer: { type: "NFC" } }, "e\u0301".repeat(500))).toBe(0);
    const split = { type: "Split", pattern: { Regex: "a" }, behavior: "Isolated", invert: false };
    expect(count({ pre_tokenizer: { type: "Sequence", pretokenizers: [split, byteLevel] } })).toBeGreaterThan(0);
    for (const fields of [
      { added_tokens: [{ ...addedToken, lstrip: true }] },
      { added_tokens: [{ ...addedToken, rstrip: true }] },
      { normalizer: { type: "Lowercase" } },
      { pre_tokenizer: { type: "WhitespaceSplit" } },
      { pre_tokenizer: null },
      { pre_tokenizer: { type: "Sequence", pretokenizers: [split] } },
      { pre_tokenizer: { type: "Sequence", pretokenizers: [{ ...split, behavior: "Removed" }, byteLevel] } },
      {
        model: { ...model, vocab: Object.fromEntries(Object.entries(model.vocab).filter(([token]) => token !== "Ā")) },
      },
    ])
      expect(count(fields), JSON.stringify(fields).slice(0, 80)).toBe(0);
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

  test("decodes its tokens for bytes if it does not have all of them", () => {
    const model = { type: "BPE", vocab: { "<0x61>": 0, "<0xFF>": 1 }, merges: [], byte_fallback: true };
    const tokenizer = { model, added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null };
    const files = { tokenizer: { ...tokenizer, decoder: { type: "ByteFallback" } }, config: {} };
    expect(new Tokenizer("tokenizer.json", files).decode([0, 1])).toMatch(/\uFFFD$/);
  });

  test("continues a run of bytes after a skipped special token", async () => {
    const { tokenizer } = await openTokenizer("byte-fallback");
    const [first, ...otherIds] = toIds(tokenizer, encodeText("你"));
    const ids = [first!, tokenizer.tokenId("<|end|>")!, ...otherIds];
    expect(tokenizer.decode(ids)).toBe("你");
    expect(tokenizer.decode(ids, { skipSpecialTokens: false })).toBe("\uFFFD<|end|>\uFFFD\uFFFD");
  });

  test("skips additional_special_tokens, but not added tokens that are not special, within a run of bytes", async () => {
    const read = async (file: string) =>
      JSON.parse(await readFile(resolvePath(`tokenizers/byte-fallback/${file}`), "utf8")) as Readonly<
        Record<string, unknown>
      >;
    const tokenizerJson = await read("tokenizer.json");
    const added = tokenizerJson.added_tokens as readonly Readonly<Record<string, unknown>>[];
    const ordinary = added.map((token) => (token.content === "<|end|>" ? { ...token, special: false } : token));
    const create = (config: object) =>
      new Tokenizer("tokenizer.json", {
        tokenizer: { ...tokenizerJson, added_tokens: ordinary },
        config: { ...config },
      });
    const decode = (tokenizer: Tokenizer) => {
      const [first, ...otherIds] = toIds(tokenizer, encodeText("你"));
      return tokenizer.decode([first!, tokenizer.tokenId("<|end|>")!, ...otherIds]);
    };
    expect(decode(create({}))).toBe("\uFFFD<|end|>\uFFFD\uFFFD");
    expect(decode(create({ additional_special_tokens: ["<|end|>"] }))).toBe("你");
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

describe("a tokenizer.json", () => {
  const none = { normalizer: null, pre_tokenizer: { type: "WhitespaceSplit" }, post_processor: null, decoder: null };
  const create = (fields: Readonly<Record<string, unknown>>, config: Readonly<Record<string, unknown>> = {}) => {
    const model = { type: "WordLevel", vocab: { "<unk>": 0, a: 1, b: 2 }, unk_token: "<unk>" };
    return new Tokenizer("tokenizer.json", { tokenizer: { model, added_tokens: [], ...none, ...fields }, config });
  };
  const added = { id: 3, content: "<x>", single_word: false, lstrip: false, rstrip: false, normalized: false };

  test("has a vocabulary up to its largest id", () => {
    const model = { type: "WordLevel", vocab: { "<unk>": 0, a: 4 }, unk_token: "<unk>" };
    expect(create({ model }).vocabSize()).toBe(5);
    expect(create({ model, added_tokens: [{ ...added, id: 9 }] }).vocabSize()).toBe(10);
    expect(create({ model, added_tokens: [{ ...added, id: 9 }] }).vocabSize(false)).toBe(5);
  });

  test("has the unknown token of words that are not in the vocabulary", () => {
    expect(create({}).encode("a c  b")).toEqual([1, 0, 2]);
    expect(create({}, { unk_token: "b" }).encode("a c")).toEqual([1, 0]);
  });

  // The results of Python's tokenizers 0.23.2.
  test.each([{ type: "Whitespace" }, { type: "Sequence", pretokenizers: [{ type: "Whitespace" }] }])(
    "is split at whitespace into words of Unicode: %o",
    (pre_tokenizer) => {
      const vocab = { "<unk>": 0, Größe: 1, "😀!": 2, 日本語: 3, "e\u0301_1": 4, "a\u200Db": 5 };
      const tokenizer = create({ pre_tokenizer, model: { type: "WordLevel", vocab, unk_token: "<unk>" } });
      expect(tokenizer.encode("Größe😀!\u0085日本語  e\u0301_1\uFEFF² a\u200Db")).toEqual([1, 2, 3, 4, 0, 5]);
    },
  );

  // The results of Python's tokenizers 0.23.2.
  const rest = "countdown! a\u0085b";
  const letters = { Regex: "[a-z]+" };
  test.each([
    [{ type: "Split", pattern: { String: "-" }, behavior: "MergedWithPrevious" }, ["the-", "final-", "-", rest]],
    [{ type: "Split", pattern: { String: "-" }, behavior: "MergedWithNext" }, ["the", "-final", "-", `-${rest}`]],
    [{ type: "Split", pattern: { String: "-" }, behavior: "Contiguous" }, ["the", "-", "final", "--", rest]],
    [{ type: "Split", pattern: { String: "-" }, behavior: "Removed" }, ["the", "final", rest]],
    [
      { type: "Split", pattern: letters, behavior: "Isolated", invert: true },
      ["the", "-", "final", "--", "countdown", "! ", "a", "\u0085", "b"],
    ],
    [{ type: "Split", pattern: letters, behavior: "Removed", invert: true }, ["the", "final", "countdown", "a", "b"]],
    [
      { type: "Split", pattern: { Regex: "[a-z]" }, behavior: "Contiguous", invert: true },
      ["the", "-", "final", "--", "countdown", "! ", "a", "\u0085", "b"],
    ],
    [{ type: "Punctuation" }, ["the", "-", "final", "-", "-", "countdown", "!", " a\u0085b"]],
    [{ type: "Punctuation", behavior: "Contiguous" }, ["the", "-", "final", "--", "countdown", "!", " a\u0085b"]],
    [{ type: "Punctuation", behavior: "Removed" }, ["the", "final", "countdown", " a\u0085b"]],
    [{ type: "Punctuation", behavior: "MergedWithNext" }, ["the", "-final", "-", "-countdown", "! a\u0085b"]],
    [{ type: "WhitespaceSplit" }, ["the-final--countdown!", "a", "b"]],
    [{ type: "BertPreTokenizer" }, ["the", "-", "final", "-", "-", "countdown", "!", "a", "b"]],
  ])("is split like in Python's tokenizers: %o", (pre_tokenizer, pieces) => {
    const vocab = Object.fromEntries(["<unk>", ...new Set(pieces)].map((piece, id) => [piece, id]));
    const tokenizer = create({ pre_tokenizer, model: { type: "WordLevel", vocab, unk_token: "<unk>" } });
    expect(tokenizer.encode(`the-final--${rest}`)).toEqual(pieces.map((piece) => vocab[piece]));
  });

  test("is split at a string, whose characters have no meaning of a regular expression", () => {
    for (const separator of ["$()", "*+.?", "[\\]", "^{|}", "/-"]) {
      const pre_tokenizer = { type: "Split", pattern: { String: separator }, behavior: "Removed", invert: false };
      expect(create({ pre_tokenizer }).encode(`a${separator}b${separator}a`), separator).toEqual([1, 2, 1]);
    }
  });

  // The results of Python's tokenizers 0.23.2.
  const bert = {
    ...{ type: "BertNormalizer", clean_text: true, handle_chinese_chars: true },
    ...{ strip_accents: null, lowercase: true },
  };
  const stripBoth = { type: "Strip", strip_left: true, strip_right: true };
  test.each([
    [{ type: "Lowercase" }, "\uFEFFΟΔΟΣ ΑΣ.\u0085", "\uFEFFοδοσ ασ.\u0085"],
    [bert, "ΟΔΟΣ ΑΣ.", "οδοσ ασ."],
    [{ ...bert, lowercase: false }, "ΟΔΟΣ", "ΟΔΟΣ"],
    [stripBoth, "\n a \n b\n ", "a \n b"],
    [stripBoth, "\u0085 \uFEFFa \uFEFF\u0085 ", "\uFEFFa \uFEFF"],
    [{ type: "Strip", strip_left: true, strip_right: false }, "\u0085 a\u0085 ", "a\u0085 "],
    [{ type: "Sequence", normalizers: [{ type: "Lowercase" }, stripBoth] }, "\u0085ΑΣ ", "ασ"],
  ])("is normalized like in Python's tokenizers: %o", (normalizer, text, normalizedText) => {
    const vocab = { "<unk>": 0, [normalizedText]: 1 };
    const model = { type: "WordLevel", vocab, unk_token: "<unk>" };
    expect(create({ normalizer, pre_tokenizer: null, model }).encode(text)).toEqual([1]);
  });

  test("with a Split that is not supported is a FileError", () => {
    const pre_tokenizer = { type: "Split", pattern: letters, behavior: "MergedWithNext", invert: true };
    expect(() => create({ pre_tokenizer })).toThrow(/received Split with behavior "MergedWithNext" and invert: true/);
  });

  test("without an unknown token rejects a text with another word", () => {
    const tokenizer = create({ model: { type: "WordLevel", vocab: { a: 1 } } });
    expect(tokenizer.encode("a")).toEqual([1]);
    expect(() => tokenizer.encode("a c")).toThrow(
      /Tokenizer.encode: expected a text of tokens of the vocabulary, .*, received "c"; .*add an unk_token to tokenizer.json/,
    );
  });

  test("is not changed by settings of other tokenizers in tokenizer_config.json, as in Python's tokenizers", () => {
    const config = { remove_space: true, do_lowercase_and_remove_accent: true };
    const model = { type: "BPE", vocab: { A: 0, " ": 1 }, merges: [] };
    expect(create({ model, pre_tokenizer: null }, config).encode("A  A ")).toEqual([0, 1, 1, 0, 1]);
  });

  test.each([
    [{ model: null }, /tokenizer.json: model: expected an object, received null/],
    [{ model: { type: "BPE" } }, /model.vocab: expected an object or an array, received undefined; download/],
    [
      { model: { type: "BPE", vocab: { a: 1e9 }, merges: [] } },
      /model.vocab: "a": expected an integer from 0 to 16777215, received 1000000000/,
    ],
    [{ model: { type: "BPE", vocab: { a: 0 }, merges: [["a"]] } }, /model.merges\[0\]: expected a pair of tokens/],
    [{ model: { type: "Unigram", vocab: [["a", 0], ["b"]] } }, /model.vocab\[1\]: expected a token and its score/],
    [{ added_tokens: null }, /added_tokens: expected an array, received null/],
    [{ added_tokens: [null] }, /added_tokens\[0\]: expected an object, received null/],
    [
      { model: { type: "BPE", vocab: { a: 2 ** 24 }, merges: [] } },
      /model.vocab: "a": expected an integer from 0 to 16777215, received 16777216/,
    ],
    [
      { model: { type: "Unigram", vocab: [["a", 0, 1]] } },
      /model.vocab\[0\]: expected a token and its score, received/,
    ],
    [{ added_tokens: [{ ...added, id: -1 }] }, /added_tokens\[0\].id: expected an integer from 0 to .*, received -1/],
    [{ added_tokens: [{ ...added, content: "" }] }, /added_tokens\[0\].content: expected a string that is not empty/],
    [
      { added_tokens: [added, { ...added, single_word: true }] },
      /added_tokens\[1\].single_word: expected false, received true; .*such as "<x>", are not supported/,
    ],
  ])("with invalid parts is a FileError: %o", (fields, message) => {
    expect(() => create(fields)).toThrow(message);
  });

  test("with a part that is used only by encode is a FileError of encode", () => {
    const tokenizer = create({ post_processor: { type: "TemplateProcessing", single: 5, pair: [] } });
    expect(() => tokenizer.encode("a")).toThrow(
      /tokenizer.json: expected a tokenizer that @huggingface\/tokenizers supports, received/,
    );
  });
});

test("chat templates have the special tokens of special_tokens_map.json in older folders, as in transformers", async () => {
  const folder = await mkdtemp(join(tmpdir(), "mosaic-tokenizer-"));
  const write = (name: string, json: unknown) => writeFile(join(folder, name), JSON.stringify(json));
  try {
    await write("tokenizer.json", JSON.parse(await readFile(resolvePath("tokenizers/unigram/tokenizer.json"), "utf8")));
    await write("special_tokens_map.json", { bos_token: { content: "<s>" }, eos_token: "</s>" });
    const config = { chat_template: "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}" };
    const render = async () => (await loadTokenizer(folder)).applyChatTemplate([{ role: "user", content: "a" }]);
    await write("tokenizer_config.json", config);
    expect(await render()).toBe("<s>a</s>");
    await write("tokenizer_config.json", { ...config, eos_token: "<|end|>" });
    expect(await render()).toBe("<s>a</s>");
    await write("tokenizer_config.json", { ...config, eos_token: "<|end|>", added_tokens_decoder: null });
    expect(await render()).toBe("<s>a</s>");
    await write("tokenizer_config.json", { ...config, eos_token: "<|end|>", added_tokens_decoder: {} });
    expect(await render()).toBe("a<|end|>");
  } finally {
    await rm(folder, { recursive: true });
  }
});

describe("a chat template", () => {
  const messages = [{ role: "user", content: "a" }];
  const create = async (config: Readonly<Record<string, unknown>>, chatTemplate?: string) => {
    const json = JSON.parse(await readFile(resolvePath("tokenizers/unigram/tokenizer.json"), "utf8")) as object;
    return new Tokenizer("tokenizer.json", { tokenizer: { ...json }, config, chatTemplate });
  };

  test("is chat_template.jinja, or else the field of the config, or its entry with the name default", async () => {
    const chat_template = [
      { name: "tool_use", template: "tools" },
      { name: "default", template: "default" },
    ];
    expect((await create({ chat_template })).applyChatTemplate(messages)).toBe("default");
    expect((await create({ chat_template: "field" })).applyChatTemplate(messages)).toBe("field");
    expect((await create({ chat_template: "field" }, "file")).applyChatTemplate(messages)).toBe("file");
    expect((await create({ chat_template: chat_template.slice(0, 1) })).hasChatTemplate).toBe(false);
  });

  test("has the special tokens of the config, which variables replace, and no other fields", async () => {
    const config = { eos_token: "</s>", padding_side: "left" };
    const tokenizer = await create(config, "{{ eos_token }},{{ padding_side }}");
    expect(tokenizer.applyChatTemplate(messages)).toBe("</s>,");
    expect(tokenizer.applyChatTemplate(messages, { variables: { eos_token: "<end>" } })).toBe("<end>,");
  });
});

describe("strip, lstrip and rstrip of a chat template remove the given characters", () => {
  const messages = [
    { role: "user", content: "\n  <think>\n a \n</think>\n\n  b \n" },
    { role: "user", content: "xxé🙂yx🙂" },
  ];
  // The results of transformers 5.18.0.
  test.each([
    ["[{{ messages[0].content.strip('\n') }}]", "[  <think>\n a \n</think>\n\n  b ]"],
    ["[{{ '🙂x🙂'.lstrip('🙂') }}]", "[x🙂]"],
    ["[{{ messages[0]['content'].rstrip('\n') }}]", "[\n  <think>\n a \n</think>\n\n  b ]"],
    ["[{{ messages[1].content.strip('x🙂') }}][{{ messages[1].content.rstrip('🙂x') }}]", "[é🙂y][xxé🙂y]"],
    [
      "{% set c = messages[0].content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}[{{ c }}]",
      "[ a ]",
    ],
    ["{% macro f(t) %}[{{ t.lstrip('x') if t else '' }}]{% endmacro %}{{ f(messages[1].content) }}", "[é🙂yx🙂]"],
    ["{% if messages[1].content.strip('x') %}{{ {'k': messages[1].content.strip('x')}['k'] }}{% endif %}", "é🙂yx🙂"],
    ["[{{ messages[0].content.strip() }}][{{ ' a '.strip('') }}]", "[<think>\n a \n</think>\n\n  b][ a ]"],
  ])("%s", async (chatTemplate, text) => {
    const json = JSON.parse(await readFile(resolvePath("tokenizers/unigram/tokenizer.json"), "utf8")) as object;
    const tokenizer = new Tokenizer("tokenizer.json", { tokenizer: { ...json }, config: {}, chatTemplate });
    expect(tokenizer.applyChatTemplate(messages)).toBe(text);
  });

  test("other arguments are an error of the template", async () => {
    const json = JSON.parse(await readFile(resolvePath("tokenizers/unigram/tokenizer.json"), "utf8")) as object;
    const chatTemplate = "{{ messages[0].content.strip(3) }}";
    const tokenizer = new Tokenizer("tokenizer.json", { tokenizer: { ...json }, config: {}, chatTemplate });
    expect(() => tokenizer.applyChatTemplate(messages)).toThrow(
      /strip: expected a string and the characters to remove/,
    );
  });
});

test("a chat template that rejects messages is an OptionError, one that fails is a FileError", async () => {
  const json = JSON.parse(await readFile(resolvePath("tokenizers/unigram/tokenizer.json"), "utf8")) as object;
  const getError = (chatTemplate: string): unknown => {
    const tokenizer = new Tokenizer("tokenizer.json", { tokenizer: { ...json }, config: {}, chatTemplate });
    try {
      return tokenizer.applyChatTemplate([{ role: "user", content: "a" }]);
    } catch (error) {
      return error;
    }
  };
  const rejection = "Tokenizer.applyChatTemplate: expected messages that the chat template accepts, received no users";
  const rejectingTemplate = "{% if messages[0].role == 'user' %}{{ raise_exception('no users') }}{% endif %}";
  expect(getError(rejectingTemplate)).toMatchObject({ name: "OptionError", message: rejection });
  const failure = /^tokenizer\.json: expected a chat template that formats these messages, received .*unknown_filter/;
  const failingTemplate = "{{ messages[0].content | unknown_filter }}";
  expect(getError(failingTemplate)).toMatchObject({ name: "FileError", message: expect.stringMatching(failure) });
  expect(getError("{% if %}")).toMatchObject({ name: "FileError" });
});
