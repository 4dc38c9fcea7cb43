import { type ChildProcess, fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { Result } from "./bench.ts";

/** What a worker says of a case. */
export interface Answer {
  readonly result?: Result;
  readonly error?: string;
  /** It cannot go on. */
  readonly isBroken?: boolean;
}

/** Runs cases by name in a process of their own, in a new one after it broke, died or did not come back. */
export class Workers implements Disposable {
  readonly #entry: string;
  readonly #args: readonly string[];
  #process: ChildProcess | undefined;

  constructor(args: readonly string[], entry: string = fileURLToPath(new URL("./gpu-worker.js", import.meta.url))) {
    this.#entry = entry;
    this.#args = args;
  }

  /** @throws Error with what went wrong; also if it took longer than `limit` seconds, and was ended. */
  async run(name: string, limit: number): Promise<Result> {
    this.#process ??= fork(this.#entry, this.#args, { stdio: ["ignore", "inherit", "inherit", "ipc"] });
    const { result, error, isBroken } = await answerOf(this.#process, name, limit);
    if (isBroken) this.#process = undefined;
    if (result === undefined) throw new Error(error);
    return result;
  }

  [Symbol.dispose](): void {
    if (this.#process?.connected) this.#process.disconnect();
    this.#process = undefined;
  }
}

function answerOf(worker: ChildProcess, name: string, limit: number): Promise<Answer> {
  return new Promise((resolve) => {
    let isLate = false;
    const clock = setTimeout(() => {
      isLate = true;
      worker.kill("SIGKILL");
    }, limit * 1000);
    const settle = (answer: Answer): void => {
      clearTimeout(clock);
      worker.removeAllListeners("message");
      worker.removeAllListeners("exit");
      resolve(answer);
    };
    worker.once("message", (answer: Answer) => settle(answer));
    worker.once("exit", (code, signal) => {
      const error = isLate
        ? `took longer than ${limit} s, and was ended`
        : `its process ended: ${signal ?? `code ${code}`}`;
      settle({ error, isBroken: true });
    });
    worker.send(name);
  });
}
