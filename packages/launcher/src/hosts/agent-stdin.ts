import { LineSplitter } from "../output/lines.ts";
import { UsageError } from "../errors.ts";

/** Data that the launcher sends to an agent in the first line. Other users cannot read the standard input of ssh. */
export interface AgentHeader {
  /** Secret of the job; absent for one host. */
  readonly secret?: string;
  /** Variables of `--env`, for all ranks. */
  readonly env: Readonly<Record<string, string>>;
}

/** Maximum size of the header. An environment has at most 128 KiB per variable and 2 MiB in total. */
const MAX_HEADER_BYTES = 4_194_304;
const ACCEPTED_SIGNALS: readonly string[] = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"];

/** Encodes the header as one line. */
export const encodeHeader = (header: AgentHeader): string => `${JSON.stringify(header)}\n`;

/** Encodes a signal as one line. */
export const encodeSignal = (name: NodeJS.Signals): string => `${name}\n`;

/**
 * An agent's end of the channel from the launcher: a header, then names of signals, one per line. The input ends when
 * the launcher or its ssh exits for any reason. Its end is treated as SIGHUP, like the end of a terminal.
 */
export class AgentStdin {
  readonly #pending: NodeJS.Signals[] = [];
  #listener: ((name: NodeJS.Signals) => void) | undefined;
  readonly #header: Promise<AgentHeader>;

  constructor(stdin: NodeJS.ReadableStream = process.stdin) {
    this.#header = new Promise((resolve, reject) => {
      let hasHeader = false;
      const lineSplitter = new LineSplitter((_, text) => {
        if (hasHeader) return this.#receive(text);
        hasHeader = true;
        const header = decodeHeader(text);
        if (header === undefined)
          reject(
            new UsageError(
              "--agent-stdin: expected a header as the first line of standard input, received a different line; " +
                "this option is set internally by --hosts",
            ),
          );
        else resolve(header);
      }, MAX_HEADER_BYTES);
      let hasEnded = false;
      const onEnd = (): void => {
        if (hasEnded) return;
        hasEnded = true;
        reject(new UsageError("--agent-stdin: standard input ended before the header"));
        this.#receive("SIGHUP");
      };
      stdin.on("data", (chunk: Buffer) => lineSplitter.push(chunk));
      for (const event of ["end", "close", "error"]) stdin.on(event, onEnd);
    });
  }

  /** Resolves to the header. Rejects with UsageError if standard input is not from a launcher. */
  header(): Promise<AgentHeader> {
    return this.#header;
  }

  /** Calls the listener for each signal, including those that were received before. */
  onSignal(listener: (name: NodeJS.Signals) => void): void {
    this.#listener = listener;
    for (const name of this.#pending.splice(0)) listener(name);
  }

  #receive(name: string): void {
    if (!ACCEPTED_SIGNALS.includes(name)) return;
    if (this.#listener === undefined) this.#pending.push(name as NodeJS.Signals);
    else this.#listener(name as NodeJS.Signals);
  }
}

function decodeHeader(text: string): AgentHeader | undefined {
  try {
    const header = JSON.parse(text) as AgentHeader | null;
    const isString = (value: unknown): boolean => typeof value === "string";
    if (typeof header?.env !== "object" || header.env === null) return undefined;
    const isValidHeader =
      (header.secret === undefined || isString(header.secret)) && Object.values(header.env).every(isString);
    return isValidHeader ? header : undefined;
  } catch {
    return undefined;
  }
}
