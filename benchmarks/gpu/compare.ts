import { median, now } from "../src/case.ts";
import type { Contender } from "./contender.ts";
import { type Effort, runsOf } from "./effort.ts";
import { PeerRefusal } from "../src/peer.ts";
import type { Problem } from "./problem.ts";

/** What one contender took for a run. */
export interface Times {
  readonly median: number;
  readonly low: number;
  readonly high: number;
  readonly runs: number;
  /** Seconds of each kernel. */
  readonly kernels?: Readonly<Record<string, number>>;
}

/** By contender; those that refused, with their reason. */
export interface Comparison {
  readonly times: Readonly<Record<string, Times>>;
  readonly refused: Readonly<Record<string, string>>;
}

interface Entrant {
  readonly contender: Contender;
  readonly runs: number;
  readonly seconds: number[];
  readonly kernels: Readonly<Record<string, number>>[];
}

/** All contenders take turns at one problem, so that all see the same card: its clock, its heat, its other users. */
export async function compare(contenders: readonly Contender[], problem: Problem, effort: Effort): Promise<Comparison> {
  const entrants: Entrant[] = [];
  const refused: Record<string, string> = {};
  try {
    for (const contender of contenders) {
      try {
        const seconds = await contender.prepare(problem);
        entrants.push({ contender, runs: runsOf(seconds, effort), seconds: [], kernels: [] });
      } catch (error) {
        if (!(error instanceof PeerRefusal)) throw error;
        refused[contender.name] = error.message;
      }
    }
    const begin = now();
    for (let round = 0; round < effort.rounds; round++) {
      if (round >= 3 && now() - begin > effort.limit) break;
      for (const entrant of entrants) await take(entrant);
    }
  } finally {
    for (const contender of contenders) await contender.release();
  }
  return { times: Object.fromEntries(entrants.map((entrant) => [entrant.contender.name, timesOf(entrant)])), refused };
}

async function take(entrant: Entrant): Promise<void> {
  const { seconds, kernels } = await entrant.contender.sample(entrant.runs);
  entrant.seconds.push(...seconds);
  if (kernels !== undefined) entrant.kernels.push(kernels);
}

function timesOf({ seconds, kernels }: Entrant): Times {
  const names = Object.keys(kernels[0] ?? {});
  return {
    median: median(seconds),
    low: Math.min(...seconds),
    high: Math.max(...seconds),
    runs: seconds.length,
    ...(names.length > 0 && {
      kernels: Object.fromEntries(names.map((name) => [name, median(kernels.map((each) => each[name]!))])),
    }),
  };
}
