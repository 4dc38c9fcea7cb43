import { type Decoder, IncrementalDecoder } from "./incremental-decoder.ts";

/** The text that a token added. */
export interface TextPiece {
  /** Empty while the new text is an incomplete character, or may be the beginning of a stop string. */
  readonly text: string;
  readonly isStopped: boolean;
}

/**
 * Converts tokens to text incrementally. The text of a token is what it adds to that of the tokens before it, so that
 * the concatenated pieces are the whole text. A character of several tokens is returned with the last one. Text that
 * may be the beginning of a stop string is held back until this is decided. Neither the stop string nor the text after
 * it is returned.
 */
export class TextStream {
  readonly #decoder: IncrementalDecoder;
  readonly #stopStrings: readonly string[];
  #heldText = "";

  constructor(tokenizer: Decoder, prompt: readonly number[], stopStrings: readonly string[] = []) {
    this.#decoder = new IncrementalDecoder(tokenizer, prompt);
    this.#stopStrings = stopStrings;
  }

  push(token: number): TextPiece {
    return this.#release(this.#heldText + this.#decoder.push(token));
  }

  /** Returns the text that was held back, at the end of the tokens. */
  flush(): string {
    const text = this.#heldText + this.#decoder.flush();
    this.#heldText = "";
    return text;
  }

  #release(text: string): TextPiece {
    const stopIndices = this.#stopStrings.map((stopString) => text.indexOf(stopString)).filter((index) => index >= 0);
    if (stopIndices.length > 0) {
      this.#heldText = "";
      return { text: text.slice(0, Math.min(...stopIndices)), isStopped: true };
    }
    const numHeldCharacters = Math.max(0, ...this.#stopStrings.map((stopString) => countStopOverlap(text, stopString)));
    this.#heldText = text.slice(text.length - numHeldCharacters);
    return { text: text.slice(0, text.length - numHeldCharacters), isStopped: false };
  }
}

/** Returns the length of the longest suffix of `text` that is a prefix of `stopString`. */
function countStopOverlap(text: string, stopString: string): number {
  for (let length = Math.min(text.length, stopString.length - 1); length > 0; length--) {
    if (text.endsWith(stopString.slice(0, length))) return length;
  }
  return 0;
}
