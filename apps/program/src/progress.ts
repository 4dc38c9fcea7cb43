/** Progress of a task: one line that is updated in place on a terminal, or one line for each tenth elsewhere. */
export class Progress {
  readonly #out: NodeJS.WriteStream;
  #startTime = 0;
  #lastShownTenth = -1;

  constructor(out: NodeJS.WriteStream) {
    this.#out = out;
  }

  /** Begins a new task. Returns a function to call with the completed share of the task and a label. */
  begin(): (share: number, label: string) => void {
    this.#startTime = performance.now();
    this.#lastShownTenth = -1;
    return (share, label) => this.#showLine(share, label);
  }

  /** Clears the line, so that the next output starts on an empty line. */
  end(): void {
    if (this.#out.isTTY) this.#out.write("\r\u001b[2K");
  }

  #showLine(share: number, label: string): void {
    const tenths = Math.floor(share * 10);
    if (!this.#out.isTTY && tenths === this.#lastShownTenth) return;
    this.#lastShownTenth = tenths;
    const elapsedSeconds = (performance.now() - this.#startTime) / 1000;
    const remainingText =
      share > 0 && share < 1 ? `, about ${Math.ceil((elapsedSeconds * (1 - share)) / share)} s remaining` : "";
    const bar = "█".repeat(Math.round(share * 20)).padEnd(20, "░");
    const line = `${bar} ${label}, ${elapsedSeconds.toFixed(0)} s${remainingText}`;
    this.#out.write(this.#out.isTTY ? `\r\u001b[2K${line}` : `${line}\n`);
  }
}
