import { type ChildProcessByStdio, spawn } from "node:child_process";
import { createInterface, type Interface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import * as mosaic from "@mosaic/attention";
import { type AttentionProblem, AttentionRun, countFlops, formatName } from "./attention-problem.ts";
import { type Case, median, waitIdle, type Row } from "./case.ts";

/** The peer as it is run where PyTorch is. */
export const sdpa: string = fileURLToPath(new URL("../peers/sdpa.py", import.meta.url));

/** The peer refused a request: it has no such backend for the problem, or no memory. */
export class PeerUnsupportedError extends Error {}

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

  /** @throws PeerUnsupportedError if it answers with an error; Error if it is gone or takes too long. */
  async request<T>(question: Readonly<Record<string, unknown>>): Promise<T> {
    const line = await this.#line(JSON.stringify(question));
    const answer = JSON.parse(line) as T & { error?: string };
    if (answer.error !== undefined) throw new PeerUnsupportedError(answer.error);
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

const HEADS = 8;

/** Seconds that one of its runs may take. */
const TIMEOUT_SECONDS = 600;

const shapes = [
  { mask: "full", d: 64, n: 1024 },
  { mask: "causal", d: 64, n: 1024 },
  { mask: "full", d: 64, n: 4096 },
  { mask: "causal", d: 64, n: 4096 },
  { mask: "full", d: 128, n: 4096 },
  { mask: "causal", d: 128, n: 4096 },
] as const;

/** Attention on every core beside PyTorch's scaled_dot_product_attention on the same cores, in turns. */
export const peerCases: readonly Case[] = (["f32", "bf16"] as const).flatMap((dtype) =>
  (["forward", "backward"] as const).flatMap((direction) =>
    shapes.map((shape) => peerCase({ direction, dtype, numHeads: HEADS, ...shape })),
  ),
);

function peerCase(problem: AttentionProblem): Case {
  const name = `peer.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions, python }) {
      using peer = new Peer([python!, sdpa, "--device", "cpu"], TIMEOUT_SECONDS);
      await peer.request({ op: "prepare", backend: "flash", problem: { ...problem, batch: 1 } });
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      using run = new AttentionRun(ctx, problem, mosaic.local());
      const [ours, theirs]: [number[], number[]] = [[], []];
      // Turn 0 warms up and is not reported.
      for (let turn = 0; turn <= repetitions; turn++) {
        await waitIdle();
        const { begin, end } = await run.once();
        await waitIdle();
        const { seconds } = await peer.request<{ seconds: [number] }>({ op: "sample", backend: "flash", count: 1 });
        if (turn === 0) continue;
        ours.push(end - begin);
        theirs.push(seconds[0]);
      }
      return [peerRow(name, countFlops(problem), { ours, theirs })];
    },
  };
}

/** Seconds of each turn. */
interface PairedTimings {
  readonly ours: readonly number[];
  readonly theirs: readonly number[];
}

/** How many times as fast we are, as the median over neighbouring turns, and best against best. */
export function peerRow(name: string, flops: number, { ours, theirs }: PairedTimings): Row {
  const vsPeer = median(theirs.map((seconds, turn) => seconds / ours[turn]!));
  const bestVsPeer = Math.min(...theirs) / Math.min(...ours);
  const rate = flops / Math.min(...ours) / 1e9;
  const peerRate = flops / Math.min(...theirs) / 1e9;
  return {
    case: name,
    numbers: { vsPeer, bestVsPeer, rate, peerRate },
    text: `${vsPeer.toFixed(2).padStart(6)} × PyTorch   ${bestVsPeer.toFixed(2)} best against best: ${rate.toFixed(0)} and ${peerRate.toFixed(0)} GFLOP/s`,
  };
}
