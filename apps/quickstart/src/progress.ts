import type { ProgressListener } from "./watched.ts";

/** How many pieces of work there are. */
export interface WorkUnits {
  readonly forward: number;
  readonly backward: number;
}

/** Backward has five products where forward has two. */
const BACKWARD_COST = 2.5;

/** Turns pieces that are done into the share of all that is. */
export function progressMeter(all: WorkUnits, progress: (share: number) => void): ProgressListener {
  const total = all.forward + all.backward * BACKWARD_COST;
  let done = 0;
  return ({ backward }) => {
    done += backward ? BACKWARD_COST : 1;
    progress(Math.min(1, done / total));
  };
}

/** Shows how far the work is: one line that renews itself on a terminal, a plain line at every step elsewhere. */
export class Progress {
  readonly #out: NodeJS.WriteStream;
  #what = "";
  #since = 0;

  constructor(out: NodeJS.WriteStream) {
    this.#out = out;
  }

  /** A new piece of work begins; returns what to call with the share of it that is done. */
  begin(what: string): (share: number) => void {
    this.#what = what;
    this.#since = performance.now();
    this.#show(0);
    return (share) => this.#show(share);
  }

  /** Clears the line, so that what is printed next stands alone. */
  end(): void {
    if (this.#out.isTTY) this.#out.write("\r\u001b[2K");
  }

  #show(share: number): void {
    const elapsed = (performance.now() - this.#since) / 1000;
    const rest = share > 0 && share < 1 ? `, about ${Math.ceil((elapsed * (1 - share)) / share)} s to go` : "";
    const line = `${bar(share)} ${String(Math.round(share * 100)).padStart(3)} %  ${this.#what}, ${elapsed.toFixed(1)} s${rest}`;
    this.#out.write(this.#out.isTTY ? `\r\u001b[2K${line}` : `${line}\n`);
  }
}

function bar(share: number): string {
  const full = Math.round(share * 20);
  return "█".repeat(full) + "░".repeat(20 - full);
}
