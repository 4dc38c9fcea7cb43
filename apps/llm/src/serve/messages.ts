import type { Socket } from "node:net";
import { createInterface } from "node:readline";

/** Options of a text: the options of `CausalLM.generate` that can be represented in JSON. */
export interface TextOptions {
  readonly tokens: readonly number[];
  readonly maxNewTokens: number;
  readonly stopStrings: readonly string[];
  readonly seed: number;
  readonly doSample?: boolean;
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly repetitionPenalty?: number;
}

/** One generated token of a text. */
export interface TextPiece {
  readonly text: string;
  readonly finishReason: "stop" | "length" | null;
}

/** Statistics of the ranks. */
export interface RankStats {
  readonly running: number;
  readonly waiting: number;
  readonly freeTokens: number;
  readonly maxTokens: number;
  /** Bytes of rank 0's device in use. */
  readonly allocated: number;
}

/** Message from the server to rank 0. */
export type ServerMessage =
  | { readonly type: "generate"; readonly id: number; readonly options: TextOptions }
  | { readonly type: "cancel"; readonly id: number }
  | { readonly type: "stats"; readonly id: number }
  | { readonly type: "stop" };

/** Message from rank 0 to the server. */
export type RankMessage =
  | { readonly type: "ready" }
  | ({ readonly type: "token"; readonly id: number } & TextPiece)
  /** `isRefused`: the request is invalid. */
  | { readonly type: "failed"; readonly id: number; readonly message: string; readonly isRefused: boolean }
  | { readonly type: "stats"; readonly id: number; readonly stats: RankStats };

/** What Node's readline takes for ends of lines, too, from Node 24 on: JSON holds them as escapes. */
const escapeLineSeparators = (json: string): string =>
  json.replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029");

/** Messages over a local socket, each one line of JSON. */
export class Channel<SentMessage, ReceivedMessage> {
  readonly #socket: Socket;

  constructor(socket: Socket, handlers: { onMessage(message: ReceivedMessage): void; onClose(): void }) {
    this.#socket = socket;
    // A "close" event follows the error.
    socket.on("error", () => {});
    socket.on("close", () => handlers.onClose());
    createInterface({ input: socket, crlfDelay: Infinity }).on("line", (line) =>
      handlers.onMessage(JSON.parse(line) as ReceivedMessage),
    );
  }

  send(message: SentMessage): void {
    if (this.#socket.writable) this.#socket.write(`${escapeLineSeparators(JSON.stringify(message))}\n`);
  }

  close(): void {
    this.#socket.end();
  }
}
