/** What turns ids into text. */
interface Decoder {
  decode(ids: readonly number[]): string;
}

/** What a token added to a text. */
export interface TextPiece {
  /** Empty while what came is a part of a character, or may be the beginning of a stop string. */
  readonly text: string;
  readonly isStopped: boolean;
}

/** Ids before a token that its text depends on: the space before a word, the bytes of a character. */
const contextSize = 8;

/**
 * The text of tokens as they come. A token's text is what it adds to that of the tokens before it, so that pieces one after another are the
 * text of all; a character of several tokens comes with the last one. Text that may become a stop string is held back until it is not, and
 * neither the stop string nor what follows is returned.
 */
export class TextStream {
  readonly #tokenizer: Decoder;
  readonly #stopStrings: readonly string[];
  #context: number[];
  /** Tokens after the context whose text is not complete. */
  #pending: number[] = [];
  #held = "";

  constructor(tokenizer: Decoder, prompt: readonly number[], stopStrings: readonly string[] = []) {
    this.#tokenizer = tokenizer;
    this.#stopStrings = stopStrings;
    this.#context = prompt.slice(-contextSize);
  }

  push(token: number): TextPiece {
    this.#pending.push(token);
    const before = this.#tokenizer.decode(this.#context);
    const all = this.#tokenizer.decode([...this.#context, ...this.#pending]);
    // U+FFFD stands for bytes that are no character, perhaps not yet. A character has at most four.
    if (all.endsWith("\uFFFD") && this.#pending.length < 4) return { text: "", isStopped: false };
    this.#context = [...this.#context, ...this.#pending].slice(-contextSize);
    this.#pending = [];
    return this.#release(this.#held + all.slice(before.length));
  }

  /** What was held back, when no token follows. */
  flush(): string {
    const before = this.#tokenizer.decode(this.#context);
    const rest = this.#tokenizer.decode([...this.#context, ...this.#pending]).slice(before.length);
    const text = this.#held + rest;
    [this.#held, this.#pending] = ["", []];
    return text;
  }

  #release(text: string): TextPiece {
    const found = this.#stopStrings.map((stop) => text.indexOf(stop)).filter((index) => index >= 0);
    if (found.length > 0) {
      this.#held = "";
      return { text: text.slice(0, Math.min(...found)), isStopped: true };
    }
    const kept = Math.max(0, ...this.#stopStrings.map((stop) => overlap(text, stop)));
    this.#held = text.slice(text.length - kept);
    return { text: text.slice(0, text.length - kept), isStopped: false };
  }
}

/** The length of the longest end of `text` that `stop` begins with. */
function overlap(text: string, stop: string): number {
  for (let length = Math.min(text.length, stop.length - 1); length > 0; length--) {
    if (text.endsWith(stop.slice(0, length))) return length;
  }
  return 0;
}
