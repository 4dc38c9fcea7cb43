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
const MAX_CONTEXT_TOKENS = 8;

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
  #pendingTokens: number[] = [];
  #heldText = "";

  constructor(tokenizer: Decoder, prompt: readonly number[], stopStrings: readonly string[] = []) {
    this.#tokenizer = tokenizer;
    this.#stopStrings = stopStrings;
    this.#context = prompt.slice(-MAX_CONTEXT_TOKENS);
  }

  push(token: number): TextPiece {
    this.#pendingTokens.push(token);
    const contextText = this.#tokenizer.decode(this.#context);
    const fullText = this.#tokenizer.decode([...this.#context, ...this.#pendingTokens]);
    // U+FFFD stands for bytes that are no character, perhaps not yet. A character has at most four.
    if (fullText.endsWith("\uFFFD") && this.#pendingTokens.length < 4) return { text: "", isStopped: false };
    this.#context = [...this.#context, ...this.#pendingTokens].slice(-MAX_CONTEXT_TOKENS);
    this.#pendingTokens = [];
    return this.#release(this.#heldText + fullText.slice(contextText.length));
  }

  /** What was held back, when no token follows. */
  flush(): string {
    const contextText = this.#tokenizer.decode(this.#context);
    const pendingText = this.#tokenizer.decode([...this.#context, ...this.#pendingTokens]).slice(contextText.length);
    const text = this.#heldText + pendingText;
    [this.#heldText, this.#pendingTokens] = ["", []];
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
