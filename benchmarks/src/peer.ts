import { type ChildProcessByStdio, spawn } from "node:child_process";
import { createInterface, type Interface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";

/** The peer as it is run where PyTorch is. */
export const sdpa: string = fileURLToPath(new URL("../peers/sdpa.py", import.meta.url));

/** The peer could not do what it was asked for: it has no such backend for the problem, or no memory. */
export class PeerRefusal extends Error {}

/** A process that answers each JSON line with one. One question at a time. */
export class Peer implements Disposable {
  readonly #process: ChildProcessByStdio<Writable, Readable, null>;
  readonly #lines: Interface;
  readonly #name: string;
  readonly #timeout: number;
  #waiting: { resolve(line: string): void; reject(error: Error): void } | undefined;
  #ended: string | undefined;

  /** Starts `command`. A question that takes longer than `timeout` seconds ends it. */
  constructor(command: readonly string[], timeout = 60) {
    this.#name = command.join(" ");
    this.#timeout = timeout;
    this.#process = spawn(command[0]!, command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
    this.#lines = createInterface({ input: this.#process.stdout });
    this.#lines.on("line", (line) => this.#take(line));
    this.#process.on("error", (error) => this.#end(error.message));
    // Not "exit": lines may still be on their way.
    this.#process.on("close", (code, signal) => this.#end(`ended with ${signal ?? `code ${code}`}`));
    this.#process.stdin.on("error", (error) => this.#end(error.message));
  }

  get hasEnded(): boolean {
    return this.#ended !== undefined;
  }

  /** @throws PeerRefusal if it answers with an error; Error if it is gone or takes too long. */
  async ask<T>(question: Readonly<Record<string, unknown>>): Promise<T> {
    const line = await this.#line(JSON.stringify(question));
    const answer = JSON.parse(line) as T & { error?: string };
    if (answer.error !== undefined) throw new PeerRefusal(answer.error);
    return answer;
  }

  #line(question: string): Promise<string> {
    if (this.#ended !== undefined) return Promise.reject(this.#gone());
    return new Promise((resolve, reject) => {
      const limit = setTimeout(() => this.#process.kill("SIGKILL"), this.#timeout * 1000);
      const settle = <T>(then: (value: T) => void) => {
        return (value: T) => {
          clearTimeout(limit);
          this.#waiting = undefined;
          then(value);
        };
      };
      this.#waiting = { resolve: settle(resolve), reject: settle(reject) };
      this.#process.stdin.write(`${question}\n`);
    });
  }

  #take(line: string): void {
    // What libraries print is no answer.
    if (line.startsWith("{")) this.#waiting?.resolve(line);
  }

  #end(why: string): void {
    this.#ended ??= why;
    this.#waiting?.reject(this.#gone());
  }

  #gone(): Error {
    return new Error(`the peer, ${this.#name}: ${this.#ended}`);
  }

  [Symbol.dispose](): void {
    if (this.#ended === undefined) this.#process.stdin.end(`${JSON.stringify({ op: "quit" })}\n`);
  }
}
