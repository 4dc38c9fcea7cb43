/** Decodes ids to text. */
export interface Decoder {
  decode(ids: readonly number[]): string;
}

/** U+FFFD, which represents bytes that are not a character, or not yet a complete one. */
const REPLACEMENT = "\uFFFD";
/**
 * Maximum number of bytes that may wait for the last byte of a character, which has at most four. Some decoders output
 * U+FFFD for each of them.
 */
const MAX_HELD_CHARACTERS = 3;
/**
 * Number of tokens before a new one that are decoded with it, because its text depends on them, for example the space
 * before a word.
 */
const NUM_CONTEXT_TOKENS = 8;
/** Number of tokens in the window above which the first ones are dropped. */
const MAX_WINDOW_TOKENS = 16;
/** Number of positions at which a cut is tried. Of four consecutive positions, at least one is between characters. */
const NUM_CUTS_TRIED = 8;
/** Number of tokens in the window above which it is cut anywhere, if no valid position is found. */
const MAX_UNCUT_TOKENS = 64;

/**
 * Decodes tokens incrementally. A window of the last tokens is decoded with each new one. The text that it adds is
 * returned, except U+FFFD at the end, which later bytes may complete to a character. The window is cut only where both
 * parts decode to the text of the whole. If tokens are bytes of UTF-8, the concatenated pieces equal the text of all
 * tokens.
 *
 * With byte fallback, one invalid byte makes all bytes of a run invalid. Characters of the run that were already
 * returned are not revoked.
 */
export class IncrementalDecoder {
  readonly #decoder: Decoder;
  #window: readonly number[];
  #text: string;
  /** The prefix of `#text` that was returned, or belongs to the prompt. */
  #returnedText: string;
  /** Number of tokens of the window whose text was returned completely. */
  #numReturnedTokens: number;

  constructor(decoder: Decoder, prompt: readonly number[]) {
    this.#decoder = decoder;
    this.#window = cutPrompt(decoder, prompt);
    this.#text = decoder.decode(this.#window);
    this.#returnedText = this.#text;
    this.#numReturnedTokens = this.#window.length;
  }

  /** Adds a token. Returns the text that it adds, as far as later tokens cannot change it. */
  push(token: number): string {
    if (isEmptyToken(this.#decoder, this.#window, token)) return "";
    this.#setWindow([...this.#window, token]);
    if (!this.#text.startsWith(this.#returnedText)) this.#separateReturnedText();
    const heldText = getHeldText(this.#text);
    const text = this.#return(this.#text.length - heldText.length);
    if (heldText === "") this.#numReturnedTokens = this.#window.length;
    if (this.#window.length > MAX_WINDOW_TOKENS) this.#cutWindow(heldText.length);
    return text;
  }

  /** Returns the text that was held back, at the end of the tokens. */
  flush(): string {
    return this.#return(this.#text.length);
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

  /** Handles a new token that changed the text before it. */
  #separateReturnedText(): void {
    if (this.#returnedText.endsWith(REPLACEMENT)) {
      // The token completes a character that began in the prompt.
      const promptTexts = decodeBeginnings(this.#decoder, this.#window.slice(0, this.#numReturnedTokens));
      const completeText = promptTexts.find((text) => this.#text.startsWith(text));
      if (completeText !== undefined) {
        this.#returnedText = completeText;
        return;
      }
    }
    // The window ends with bytes of an incomplete character, after those of complete ones.
    const numReturnedCharacters = this.#decoder.decode(this.#window.slice(0, this.#numReturnedTokens)).length;
    this.#setWindow(this.#window.slice(this.#numReturnedTokens));
    this.#returnedText = this.#text.slice(0, Math.max(0, this.#returnedText.length - numReturnedCharacters));
    this.#numReturnedTokens = 0;
  }

  /**
   * Drops the first tokens of the window, at a position where its text is the concatenation of the texts of both parts.
   */
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

  /**
   * Returns whether a cut is valid. If it splits a character into several U+FFFD, the parts are longer than the whole.
   * If a space is stripped, they are shorter.
   */
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

/** Returns the U+FFFD at the end of a text, which later bytes may change. */
function getHeldText(text: string): string {
  let length = 0;
  while (length < MAX_HELD_CHARACTERS && text.endsWith(REPLACEMENT, text.length - length)) length++;
  return text.slice(text.length - length);
}

/** Decodes tokens, and the tokens without the last ones, which may be bytes of an incomplete character. */
function decodeBeginnings(decoder: Decoder, tokens: readonly number[]): readonly string[] {
  const counts = Array.from({ length: MAX_HELD_CHARACTERS + 1 }, (_, i) => tokens.length - i);
  return counts.filter((count) => count >= 0).map((count) => decoder.decode(tokens.slice(0, count)));
}

/** Returns whether `token`, after `previousTokens`, adds no text, as a special token does at any position. */
function isEmptyToken(decoder: Decoder, previousTokens: readonly number[], token: number): boolean {
  if (decoder.decode([token]) !== "") return false;
  const previousText = decoder.decode(previousTokens);
  return previousText !== "" && decoder.decode([...previousTokens, token]) === previousText;
}

/** Returns the last tokens of a prompt that have text, starting at the beginning of a character. */
function cutPrompt(decoder: Decoder, prompt: readonly number[]): readonly number[] {
  const tokens: number[] = [];
  for (const token of prompt.slice(-MAX_UNCUT_TOKENS)) {
    if (!isEmptyToken(decoder, tokens, token)) tokens.push(token);
  }
  for (let count = NUM_CONTEXT_TOKENS; count < MAX_WINDOW_TOKENS && count < tokens.length; count++) {
    const lastTokens = tokens.slice(-count);
    if (decodeBeginnings(decoder, lastTokens).some((text) => !text.startsWith(REPLACEMENT))) return lastTokens;
  }
  return tokens.slice(-MAX_WINDOW_TOKENS);
}
