import { join } from "node:path";
import { parseArgs } from "node:util";
import { lengths } from "./cases.ts";
import { type Effort, singleRunEffort, quickEffort, fullEffort } from "./bench.ts";
import { sdpa } from "../src/peers.ts";
import type { Sizes } from "./problem.ts";
import { torchBackends } from "./contenders.ts";

export const help: string = `Measures Mosaic's attention on a GPU beside PyTorch's scaled_dot_product_attention on the same card, in turns.

  npm run bench:gpu -- [options]

  --filter TEXT    only cases whose name contains it; several are separated by commas
  --out DIR        where results are kept, gpu.jsonl and gpu.md; what is there is not measured again (default build/gpu)
  --again          measure it again all the same
  --quick          fewer rounds
  --share X        of the parts' budgets, together eight minutes (default 1)
  --peer COMMAND   starts PyTorch's side (default: python3 and sdpa.py); "none" runs without
  --list           the names of the cases
  --floors         counts operations and bytes, and what an H200 needs for them at least; measures nothing
  -h, --help       show this help

For trying it out where there is no GPU: --device cpu, --tokens N, --hidden N, --lengths N,N, --backends NAME,NAME, --once.`;

/** What the command was given. */
export interface Options {
  readonly filter: readonly string[];
  readonly out: string;
  /** Where results are kept, within `out`. */
  readonly file: string;
  readonly device: "cuda" | "cpu";
  readonly peer: readonly string[] | undefined;
  readonly backends: readonly string[];
  readonly lengths: readonly number[];
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly share: number;
  readonly again: boolean;
  readonly list: boolean;
  readonly floors: boolean;
  readonly help: boolean;
}

const flag = { type: "boolean", default: false } as const;
const text = <T extends string>(value: T) => ({ type: "string", default: value }) as const;
const flags = {
  filter: text(""),
  out: text("build/gpu"),
  device: text("cuda"),
  peer: { type: "string" },
  backends: text(torchBackends.join()),
  lengths: text(lengths.join()),
  tokens: text("65536"),
  hidden: text("2048"),
  share: text("1"),
  again: flag,
  quick: flag,
  once: flag,
  list: flag,
  floors: flag,
  help: { ...flag, short: "h" },
} as const;

/** Undefined, with a word on stderr, if they make no sense. */
export function read(args: string[]): Options | undefined {
  try {
    const { values } = parseArgs({ args, options: flags });
    const device = values.device === "cpu" ? "cpu" : "cuda";
    const peer = values.peer?.split(" ") ?? ["python3", sdpa, "--device", device];
    const { tokens, hidden, share } = values;
    return {
      ...values,
      sizes: { tokens: Number(tokens), hidden: Number(hidden) },
      effort: values.once ? singleRunEffort : values.quick ? quickEffort : fullEffort,
      share: Number(share),
      file: join(values.out, "gpu.jsonl"),
      device,
      peer: values.peer === "none" ? undefined : peer,
      filter: values.filter.split(","),
      backends: values.backends.split(","),
      lengths: values.lengths.split(",").map(Number),
    };
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${help}`);
    return undefined;
  }
}
