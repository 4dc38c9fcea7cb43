import { type Decoder, IncrementalDecoder } from "./incremental-decoder.ts";

/** What a token added to a text. */
export interface TextPiece {
  /** Empty while what came is a part of a character, or may be the beginning of a stop string. */
  readonly text: string;
  readonly isStopped: boolean;
}

/**
 * The text of tokens as they come. A token's text is what it adds to that of the tokens before it, so that pieces one after another are the
 * text of all; a character of several tokens comes with the last one. Text that may become a stop string is held back until it is not, and
 * neither the stop string nor what follows is returned.
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

  /** What was held back, when no token follows. */
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

/** The length of the longest end of `text` that `stop` begins with. */
function countStopOverlap(text: string, stopString: string): number {
  for (let length = Math.min(text.length, stopString.length - 1); length > 0; length--) {
    if (text.endsWith(stopString.slice(0, length))) return length;
  }
  return 0;
}
