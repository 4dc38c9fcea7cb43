import { expect, test } from "vitest";
import { Tokenizer } from "@mosaic/models";
import { readCorpus } from "../src/corpus.ts";
import { byteCharacters, splitWords } from "../src/tokenizer/byte-level.ts";
import { tokenizeCorpus, createWordEncoder } from "../src/tokenizer/corpus-tokens.ts";
import { toTokenizerJson, trainBytePairs } from "../src/tokenizer/train-bpe.ts";

const corpus = readCorpus();

test("the corpus has 66 books, four of them held out, and every verse", () => {
  const books = [...corpus.train, ...corpus.heldOut];
  expect(books.length).toBe(66);
  expect(corpus.heldOut.map(({ name }) => name)).toEqual(["Ruth", "Est", "Dan", "Jas"]);
  expect(books[0]!.text.startsWith("In the beginning God created the heaven and the earth.\n")).toBe(true);
  expect(books.reduce((sum, { text }) => sum + text.split("\n").filter(Boolean).length, 0)).toBe(31_102);
  // Chapters are separated by an empty line.
  expect(corpus.heldOut[0]!.text.split("\n\n").length).toBe(4);
});

/** Computes byte-pair encoding by its definition, counting all pairs again for every merge. */
function computeMergesNaively(texts: readonly string[], count: number): [string, string][] {
  let words = texts.flatMap((text) => splitWords(text).map((word) => [...byteCharacters(word)]));
  const merges: [string, string][] = [];
  const order = new Map<string, number>();
  const rank = (token: string) => (token.length === 1 ? token.codePointAt(0)! : 10_000 + order.get(token)!);
  while (merges.length < count) {
    const counts = new Map<string, number>();
    for (const word of words)
      for (let i = 0; i + 1 < word.length; i++) {
        const pair = `${word[i]} ${word[i + 1]}`;
        counts.set(pair, (counts.get(pair) ?? 0) + 1);
      }
    const maxCount = Math.max(...counts.values());
    const ties = [...counts].flatMap(([pair, pairCount]) =>
      pairCount === maxCount ? [pair.split(" ") as [string, string]] : [],
    );
    const [best] = ties.toSorted(([a, b], [c, d]) => rank(a) - rank(c) || rank(b) - rank(d));
    merges.push(best!);
    order.set(best!.join(""), merges.length);
    words = words.map((word) => {
      const out: string[] = [];
      for (let i = 0; i < word.length; i++) {
        const isPair = word[i] === best![0] && word[i + 1] === best![1];
        out.push(isPair ? best!.join("") : word[i]!);
        if (isPair) i++;
      }
      return out;
    });
  }
  return merges;
}

test("merges equal those of a naive implementation, including pairs that overlap", () => {
  const texts = [corpus.heldOut[3]!.text.slice(0, 6000), "aaaa aaa bananananas aaaaa"];
  expect(trainBytePairs(texts, 257 + 80).merges).toEqual(computeMergesNaively(texts, 80));
});

test("the Hugging Face tokenizer restores the text, and encoding word by word gives the same ids", () => {
  const { tokenizer } = tokenizeCorpus({ train: corpus.heldOut, heldOut: [] }, 600);
  expect(tokenizer.vocabSize()).toBe(600);
  const text = `${corpus.train[20]!.text.slice(0, 3000)} Ünïcode — 漢字 1611; it's  two spaces\n\n\tend `;
  const ids = tokenizer.encode(text);
  expect(tokenizer.decode(ids)).toBe(text);
  expect(createWordEncoder(tokenizer)(text)).toEqual(ids);
  expect(ids.length).toBeLessThan(text.length / 2);
});

test("the same texts give the same tokenizer file", () => {
  const texts = corpus.heldOut.map(({ text }) => text);
  const [a, b] = [texts, [...texts]].map((corpusTexts) =>
    JSON.stringify(toTokenizerJson(trainBytePairs(corpusTexts, 400))),
  );
  expect(a).toBe(b);
  expect(() => trainBytePairs(texts, 100)).toThrow(/an integer ≥ 257 as the vocabulary size, received 100/);
  expect(new Tokenizer("x", { tokenizer: JSON.parse(a!), config: {} }).tokenId("</s>")).toBe(0);
});
