import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { cudaSystem } from "@mosaic/kernels-cuda";
import { Peer } from "../src/peers.ts";
import type { Bench, Implementation, Effort, Result } from "./bench.ts";
import { type Families, openFamilies, torchContender } from "./contenders.ts";
import type { Sizes } from "./problem.ts";

interface SessionOptions {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  /** How PyTorch's side is started; none: ours alone. */
  readonly peer: readonly string[] | undefined;
  /** The backends of PyTorch to measure. */
  readonly backends: readonly string[];
}

/** One run of the benchmark: opens card and peer when they are first needed, and closes them. */
export class Session implements Bench, AsyncDisposable {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  readonly #options: SessionOptions;
  #families: Families | undefined;
  #peer: Peer | undefined;

  constructor(options: SessionOptions) {
    this.sizes = options.sizes;
    this.effort = options.effort;
    this.device = options.device;
    this.#options = options;
  }

  async implementations(): Promise<readonly Implementation[]> {
    this.#families ??= await openFamilies(this.device);
    const peer = this.peer();
    const theirs = peer ? this.#options.backends.map((backend) => torchContender(peer, backend)) : [];
    return [...this.#families.implementations, ...theirs];
  }

  peer(): Peer | undefined {
    if (this.#peer?.hasEnded) this.#peer = undefined;
    if (this.#options.peer) this.#peer ??= new Peer(this.#options.peer);
    return this.#peer;
  }

  async close(): Promise<void> {
    this.#peer?.[Symbol.dispose]();
    this.#peer = undefined;
    await this.#families?.[Symbol.asyncDispose]();
    this.#families = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Where and with what the numbers come to be. */
export async function describeHost(device: "cuda" | "cpu", peer: Peer | undefined): Promise<Result> {
  const manifest = new URL("../package.json", import.meta.resolve("@mosaic/core"));
  return {
    case: "host",
    date: new Date().toISOString().slice(0, 10),
    command: `npm run bench:gpu -- ${process.argv.slice(2).join(" ")}`.trim(),
    mosaic: (JSON.parse(readFileSync(manifest, "utf8")) as { version: string }).version,
    node: process.version.slice(1),
    ...(device === "cuda" ? gpu() : { gpu: "none (measured on a CPU)" }),
    ...(peer && { peer: await peer.request<object>({ op: "hello" }) }),
  };
}

function gpu(): object {
  const { driver, library, gpus, cublasLt } = cudaSystem();
  const { name, capability, bytes } = gpus[0]!;
  // The driver's own number is not to be had through its API.
  const queried = spawnSync("nvidia-smi", ["--query-gpu=driver_version", "--format=csv,noheader"], {
    encoding: "utf8",
  });
  const version = queried.status === 0 ? { driver: queried.stdout.split("\n")[0]!.trim() } : {};
  return { gpu: name, capability, gibibytes: Math.round(bytes / 2 ** 30), ...version, cuda: driver, library, cublasLt };
}

/** What must not change between runs that fill one file. */
export function describeDifference(stored: Result, measured: Result): string | undefined {
  const key = ["gpu", "driver", "cuda", "mosaic"].find((name) => stored[name] !== measured[name]);
  return key && `${key} was ${String(stored[key])}, now ${String(measured[key])}`;
}
