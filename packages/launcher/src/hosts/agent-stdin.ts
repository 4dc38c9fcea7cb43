import { LineSplitter } from "../output/lines.ts";
import { UsageError } from "../errors.ts";

/** What the launcher passes to an agent in the first line: other users cannot read what goes through ssh's standard input. */
export interface AgentHeader {
  /** Of the job; absent for one host. */
  readonly secret?: string;
  /** `--env` of all ranks. */
  readonly env: Readonly<Record<string, string>>;
}

/** The longest header: an environment has 128 KiB a variable, 2 MiB in all. */
const MAX_HEADER_BYTES = 4_194_304;
const ACCEPTED_SIGNALS: readonly string[] = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"];

/** The header as one line. */
export const encodeHeader = (header: AgentHeader): string => `${JSON.stringify(header)}\n`;

/** A signal as one line. */
export const encodeSignal = (name: NodeJS.Signals): string => `${name}\n`;

/**
 * An agent's end of the channel to the launcher: a header, then the names of signals, one a line. Its end, which is that of the launcher
 * or of its ssh however it came, counts as SIGHUP, as the end of a terminal does.
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

  /** Rejects with UsageError where no launcher is at the other end. */
  header(): Promise<AgentHeader> {
    return this.#header;
  }

  /** Passes on every signal, those included that have come already. */
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
