import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";

/** A book as one text: a line for each verse, and an empty one between chapters. */
export interface Book {
  /** As the references name it: "Ge", "1Sm". */
  readonly name: string;
  readonly text: string;
}

/** The corpus: what a model learns from, and what it is judged by. */
export interface Corpus {
  readonly train: readonly Book[];
  readonly heldOut: readonly Book[];
}

/** Books that no model is trained on: a story, a longer one, prophecy with stories, a letter. No other book has their stories. */
const heldOutBookNames: readonly string[] = ["Ruth", "Est", "Dan", "Jas"];

const referencePattern = /^(\d?[A-Za-z]+)(\d+):(\d+) (.*)$/;

/** The King James Version, by books. */
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
