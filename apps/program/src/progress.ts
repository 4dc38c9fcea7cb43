/** How far a training is: one line that renews itself on a terminal, a line for each tenth elsewhere. */
export class Progress {
  readonly #out: NodeJS.WriteStream;
  #startTime = 0;
  #lastShownTenth = -1;

  constructor(out: NodeJS.WriteStream) {
    this.#out = out;
  }

  /** A new piece of work begins; returns what to call with the share of it that is done, and in words. */
  begin(): (share: number, words: string) => void {
    this.#startTime = performance.now();
    this.#lastShownTenth = -1;
    return (share, words) => this.#show(share, words);
  }

  /** Clears the line, so that what is printed next stands alone. */
  end(): void {
    if (this.#out.isTTY) this.#out.write("\r\u001b[2K");
  }

  #show(share: number, words: string): void {
    const tenth = Math.floor(share * 10);
    if (!this.#out.isTTY && tenth === this.#lastShownTenth) return;
    this.#lastShownTenth = tenth;
    const elapsed = (performance.now() - this.#startTime) / 1000;
    const rest = share > 0 && share < 1 ? `, about ${Math.ceil((elapsed * (1 - share)) / share)} s remaining` : "";
    const bar = "█".repeat(Math.round(share * 20)).padEnd(20, "░");
    const line = `${bar} ${words}, ${elapsed.toFixed(0)} s${rest}`;
    this.#out.write(this.#out.isTTY ? `\r\u001b[2K${line}` : `${line}\n`);
  }
}
