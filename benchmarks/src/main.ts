import { parseArgs } from "node:util";
import type { Case, Effort, Row } from "./case.ts";
import { collectiveCases } from "./collectives.ts";
import { decodeCases, peerDecodeCases } from "./decode.ts";
import { decodeRanksCases, peerDecodeStepCases } from "./decode-step.ts";
import { flexCases } from "./flex.ts";
import { gemmCases, localCases } from "./local.ts";
import { peerCases } from "./peers.ts";
import { peerErrorCases } from "./peers-errors.ts";
import { peerLinearCases } from "./peers-linear.ts";
import { peerRingCases } from "./peers-ring.ts";
import { predictionCases } from "./prediction.ts";
import { proofCases } from "./proof.ts";
import { ringCases } from "./ring.ts";
import { smallCallCases } from "./small-calls.ts";

const help = `Measures Mosaic on this machine, relative to the machine's limits measured in the same run.

  npm run bench -- [options]

  --python PATH   Python executable with PyTorch; also runs the cases "peer…", Mosaic and PyTorch in turns
  --filter TEXT   runs only cases with TEXT in the name; separate several by commas
  --quick         runs fewer repetitions: about one minute, less precise
  --json          prints one JSON object per case: {"case": …, its numbers}
  --list          prints the names of the cases
  -h, --help      show this help`;

const cases: readonly Case[] = [
  ...localCases,
  ...ringCases,
  ...flexCases,
  ...gemmCases,
  ...decodeCases,
  ...decodeRanksCases,
  ...collectiveCases,
  ...predictionCases,
  ...proofCases,
];

/** What needs PyTorch beside us. */
const peerOnlyCases: readonly Case[] = [
  ...peerCases,
  ...peerErrorCases,
  ...peerDecodeCases,
  ...peerDecodeStepCases,
  ...peerLinearCases,
  ...peerRingCases,
  ...smallCallCases,
];

process.exitCode = await main(process.argv.slice(2));

async function main(args: string[]): Promise<number> {
  const options = read(args);
  if (options === undefined) return 2;
  if (options.help) console.log(help);
  if (options.help) return 0;
  const wanted = (name: string): boolean => options.filter.some((text) => name.includes(text));
  const chosen = [...cases, ...(options.python ? peerOnlyCases : [])].filter(({ names }) => names.some(wanted));
  if (chosen.length === 0) {
    console.error(
      `--filter ${options.filter.join()}: no case matches; --list prints all names, with --python also those of PyTorch cases`,
    );
    return 2;
  }
  if (options.list) for (const name of chosen.flatMap(({ names }) => names).filter(wanted)) console.log(name);
  if (options.list) return 0;
  const effort: Effort = { repetitions: options.quick ? 2 : 7, python: options.python };
  for (const each of chosen) {
    for (const row of (await each.run(effort)).filter((one) => wanted(one.case))) {
      console.log(options.json ? json(row) : `${row.case.padEnd(44)}${row.text}`);
    }
  }
  return 0;
}

interface Options {
  readonly filter: readonly string[];
  readonly python: string | undefined;
  readonly quick: boolean;
  readonly json: boolean;
  readonly list: boolean;
  readonly help: boolean;
}

function read(args: string[]): Options | undefined {
  const flag = { type: "boolean", default: false } as const;
  try {
    const { values } = parseArgs({
      args,
      options: {
        filter: { type: "string" },
        python: { type: "string" },
        quick: flag,
        json: flag,
        list: flag,
        help: { ...flag, short: "h" },
      },
    });
    return { ...values, python: values.python, filter: (values.filter ?? "").split(",") };
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${help}`);
    return undefined;
  }
}

/** Four digits: more would only repeat the noise. */
function json({ case: name, numbers }: Row): string {
  const rounded = Object.entries(numbers).map(([key, value]) => [key, Number(value.toPrecision(4))]);
  return JSON.stringify({ case: name, ...Object.fromEntries(rounded) });
}
