import { join } from "node:path";
import { parseArgs } from "node:util";
import { lengths } from "./cases.ts";
import { type Effort, singleRunEffort, quickEffort, fullEffort } from "./bench.ts";
import { sdpaScriptPath } from "../src/peers.ts";
import type { Sizes } from "./problem.ts";
import { torchBackends } from "./contenders.ts";

export const help: string = `Compares Mosaic's attention with PyTorch's scaled_dot_product_attention on the same GPU, in turns.

  npm run bench:gpu -- [options]

  --filter TEXT    runs only cases with TEXT in the name; separate several by commas
  --out DIR        folder of the results, gpu.jsonl and gpu.md; cases with results are skipped (default build/gpu)
  --again          repeats cases that have results
  --quick          runs fewer rounds
  --share X        scale of the time budget, eight minutes in total (default 1)
  --peer COMMAND   command of the PyTorch process (default: python3 with sdpa.py); "none": without PyTorch
  --list           prints the names of the cases
  --floors         prints operations, bytes and the minimum time on an H200, without measuring
  -h, --help       show this help

For tests without a GPU:
  --device cpu     measures on the CPU (default cuda)
  --tokens N       number of tokens in a batch (default 65536)
  --hidden N       hidden size: number of heads × head size (default 2048)
  --lengths N,N    sequence lengths (default ${lengths.join()})
  --backends A,B   backends of PyTorch: ${torchBackends.join()} (default all)
  --once           runs each contender once`;

/** Parsed command-line options. */
export interface Options {
  readonly filter: readonly string[];
  readonly out: string;
  /** File of the results, in `out`. */
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

const booleanOption = { type: "boolean", default: false } as const;
const stringOption = <T extends string>(value: T) => ({ type: "string", default: value }) as const;
const flags = {
  filter: stringOption(""),
  out: stringOption("build/gpu"),
  device: stringOption("cuda"),
  peer: { type: "string" },
  backends: stringOption(torchBackends.join()),
  lengths: stringOption(lengths.join()),
  tokens: stringOption("65536"),
  hidden: stringOption("2048"),
  share: stringOption("1"),
  again: booleanOption,
  quick: booleanOption,
  once: booleanOption,
  list: booleanOption,
  floors: booleanOption,
  help: { ...booleanOption, short: "h" },
} as const;

/** Parses the options. Prints an error and returns undefined if they are invalid. */
export function parseOptions(args: string[]): Options | undefined {
  try {
    const { values } = parseArgs({ args, options: flags });
    const device = values.device === "cpu" ? "cpu" : "cuda";
    const baselineCommand = values.peer?.split(" ") ?? ["python3", sdpaScriptPath, "--device", device];
    const { tokens, hidden, share } = values;
    return {
      ...values,
      sizes: { tokens: Number(tokens), hidden: Number(hidden) },
      effort: values.once ? singleRunEffort : values.quick ? quickEffort : fullEffort,
      share: Number(share),
      file: join(values.out, "gpu.jsonl"),
      device,
      peer: values.peer === "none" ? undefined : baselineCommand,
      filter: values.filter.split(","),
      backends: values.backends.split(","),
      lengths: values.lengths.split(",").map(Number),
    };
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${help}`);
    return undefined;
  }
}
