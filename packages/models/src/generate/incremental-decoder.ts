/** What turns ids into text. */
export interface Decoder {
  decode(ids: readonly number[]): string;
}

/** What stands for bytes that are no character, perhaps not yet. */
const REPLACEMENT = "\uFFFD";
/** A character has at most four bytes: so many may wait for the last, each of which some decoders show as a U+FFFD. */
const MAX_HELD_CHARACTERS = 3;
/** Tokens before a new one that are decoded with it: its text depends on them, as the space before a word does. */
const NUM_CONTEXT_TOKENS = 8;
/** Tokens from which on the first ones are dropped. */
const MAX_WINDOW_TOKENS = 16;
/** Of four places in a row, one is between characters. */
const NUM_CUTS_TRIED = 8;
/** Tokens from which on they are dropped wherever, if no place to cut is found. */
const MAX_UNCUT_TOKENS = 64;

/**
 * Decodes tokens as they come. A window of the last tokens is decoded with each new one, and what it adds to the text before is returned, but
 * for U+FFFD at the end, which later bytes may make a character. The window is cut only where both sides decode to the text of the whole:
 * pieces one after another are the text of all tokens if tokens are bytes of UTF-8.
 *
 * Where one invalid byte makes all bytes of a run invalid, as byte fallback has it, characters that were returned stay.
 */
export class IncrementalDecoder {
  readonly #decoder: Decoder;
  #window: readonly number[];
  #text: string;
  /** The beginning of `#text` that was returned, or is the prompt's. */
  #returnedText: string;
  /** Tokens of the window whose text was returned whole. */
  #numReturnedTokens: number;

  constructor(decoder: Decoder, prompt: readonly number[]) {
    this.#decoder = decoder;
    this.#window = cutPrompt(decoder, prompt);
    this.#text = decoder.decode(this.#window);
    this.#returnedText = this.#text;
    this.#numReturnedTokens = this.#window.length;
  }

  /** What is certain of the text that a token adds. */
  push(token: number): string {
    if (this.#isEmptyToken(token)) return "";
    this.#setWindow([...this.#window, token]);
    if (!this.#text.startsWith(this.#returnedText)) this.#separateReturnedText();
    const heldText = getHeldText(this.#text);
    const text = this.#return(this.#text.length - heldText.length);
    if (heldText === "") this.#numReturnedTokens = this.#window.length;
    if (this.#window.length > MAX_WINDOW_TOKENS) this.#cutWindow(heldText.length);
    return text;
  }

  /** What was held back, when no token follows. */
  flush(): string {
    return this.#return(this.#text.length);
  }

  /** Whether a token, such as a special one, has no text wherever it stands. */
  #isEmptyToken(token: number): boolean {
    if (this.#text === "" || this.#decoder.decode([token]) !== "") return false;
    return this.#decoder.decode([...this.#window, token]) === this.#text;
  }

  #setWindow(window: readonly number[]): void {
    this.#window = window;
    this.#text = this.#decoder.decode(window);
  }

  #return(end: number): string {
    const start = this.#returnedText.length;
    if (end <= start) return "";
    this.#returnedText = this.#text.slice(0, end);
    return this.#text.slice(start, end);
  }

  /** A new token has changed text before it. */
  #separateReturnedText(): void {
    if (this.#returnedText.endsWith(REPLACEMENT)) {
      // The token completes a character that the prompt began.
      const promptTexts = decodeBeginnings(this.#decoder, this.#window.slice(0, this.#numReturnedTokens));
      const completeText = promptTexts.find((text) => this.#text.startsWith(text));
      if (completeText !== undefined) {
        this.#returnedText = completeText;
        return;
      }
    }
    // Bytes of a character that is not complete, after those of complete ones.
    const numReturnedCharacters = this.#decoder.decode(this.#window.slice(0, this.#numReturnedTokens)).length;
    this.#setWindow(this.#window.slice(this.#numReturnedTokens));
    this.#returnedText = this.#text.slice(0, Math.max(0, this.#returnedText.length - numReturnedCharacters));
    this.#numReturnedTokens = 0;
  }

  /** Drops tokens at the beginning of the window, where its text falls into that of two parts. */
  #cutWindow(numHeldCharacters: number): void {
    const lastCut = this.#window.length - NUM_CONTEXT_TOKENS;
    for (let cut = lastCut; cut > Math.max(0, lastCut - NUM_CUTS_TRIED); cut--) {
      const text = this.#decoder.decode(this.#window.slice(cut));
      if (text.length > numHeldCharacters && this.#isCut(cut, text)) {
        this.#dropTokens(cut, numHeldCharacters);
        return;
      }
    }
    if (this.#window.length > MAX_UNCUT_TOKENS) this.#dropTokens(lastCut, numHeldCharacters);
  }

  /** A character that is cut becomes several U+FFFD: the parts are longer than the whole. They are shorter if a space is stripped. */
  #isCut(cut: number, lastText: string): boolean {
    const firstText = this.#decoder.decode(this.#window.slice(0, cut));
    const isWithinText = firstText.length + lastText.length <= this.#text.length;
    return isWithinText && this.#text.startsWith(firstText) && this.#text.endsWith(lastText);
  }

  #dropTokens(count: number, numHeldCharacters: number): void {
    this.#setWindow(this.#window.slice(count));
    this.#returnedText = this.#text.slice(0, Math.max(0, this.#text.length - numHeldCharacters));
    this.#numReturnedTokens = Math.max(0, this.#numReturnedTokens - count);
  }
}

/** U+FFFD at the end of a text that later bytes may change. */
function getHeldText(text: string): string {
  let length = 0;
  while (length < MAX_HELD_CHARACTERS && text.endsWith(REPLACEMENT, text.length - length)) length++;
  return text.slice(text.length - length);
}

/** The text of tokens, and of those without the last, which may be bytes of a character that is not complete. */
function decodeBeginnings(decoder: Decoder, tokens: readonly number[]): readonly string[] {
  const counts = Array.from({ length: MAX_HELD_CHARACTERS + 1 }, (_, i) => tokens.length - i);
  return counts.filter((count) => count >= 0).map((count) => decoder.decode(tokens.slice(0, count)));
}

/** The last tokens of a prompt, from the beginning of a character on. */
function cutPrompt(decoder: Decoder, prompt: readonly number[]): readonly number[] {
  for (let count = NUM_CONTEXT_TOKENS; count < MAX_WINDOW_TOKENS && count < prompt.length; count++) {
    const tokens = prompt.slice(-count);
    if (decodeBeginnings(decoder, tokens).some((text) => !text.startsWith(REPLACEMENT))) return tokens;
  }
  return prompt.slice(-MAX_WINDOW_TOKENS);
}
