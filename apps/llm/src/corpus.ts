import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";

/** A book as one text, with one line for each verse and an empty line between chapters. */
export interface Book {
  /** Name of the book in references, for example "Ge" or "1Sm". */
  readonly name: string;
  readonly text: string;
}

/** The corpus: books for training, and held-out books for evaluation. */
export interface Corpus {
  readonly train: readonly Book[];
  readonly heldOut: readonly Book[];
}

/**
 * Books on which no model is trained: a story, a longer story, a prophecy with stories and a letter. No other book
 * contains their stories.
 */
const heldOutBookNames: readonly string[] = ["Ruth", "Est", "Dan", "Jas"];

const referencePattern = /^(\d?[A-Za-z]+)(\d+):(\d+) (.*)$/;

/** Reads the King James Version, by books. */
export function readCorpus(path: URL = new URL("../data/kjv.txt.gz", import.meta.url)): Corpus {
  const lines = gunzipSync(readFileSync(path)).toString("utf8").split("\n").filter(Boolean);
  const texts = new Map<string, string>();
  let previousChapter = "";
  for (const line of lines) {
    const [, book, chapter, , verse] = referencePattern.exec(line) ?? [];
    if (book === undefined)
      throw new Error(`${path.pathname}: expected a verse with its reference, received "${line}"`);
    const previousText = texts.get(book);
    const isNewChapter = previousText !== undefined && previousChapter !== `${book} ${chapter}`;
    texts.set(book, `${previousText ?? ""}${isNewChapter ? "\n" : ""}${verse}\n`);
    previousChapter = `${book} ${chapter}`;
  }
  const books = [...texts].map(([name, text]) => ({ name, text }));
  return {
    train: books.filter(({ name }) => !heldOutBookNames.includes(name)),
    heldOut: books.filter(({ name }) => heldOutBookNames.includes(name)),
  };
}
