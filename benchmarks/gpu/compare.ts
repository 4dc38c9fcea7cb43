import { median, now } from "../src/case.ts";
import type { Contender } from "./contender.ts";
import { type Effort, runsOf } from "./effort.ts";
import { PeerRefusal } from "./peer.ts";
import type { Problem } from "./problem.ts";

/** What one contender took for a run. */
export interface Times {
  readonly median: number;
  readonly low: number;
  readonly high: number;
  readonly runs: number;
  readonly idle?: number;
  readonly kernels?: readonly string[];
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
  readonly idle: number[];
  kernels?: readonly string[];
}

/** All contenders take turns at one problem, so that all see the same card: its clock, its heat, its other users. */
export async function compare(contenders: readonly Contender[], problem: Problem, effort: Effort): Promise<Comparison> {
  const entrants: Entrant[] = [];
  const refused: Record<string, string> = {};
  try {
    for (const contender of contenders) {
      try {
        const seconds = await contender.prepare(problem);
        entrants.push({ contender, runs: runsOf(seconds, effort), seconds: [], idle: [] });
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
  const { seconds, idle, kernels } = await entrant.contender.sample(entrant.runs);
  entrant.seconds.push(...seconds);
  if (idle !== undefined) entrant.idle.push(idle);
  if (kernels !== undefined) entrant.kernels = kernels;
}

function timesOf({ seconds, idle, kernels }: Entrant): Times {
  return {
    median: median(seconds),
    low: Math.min(...seconds),
    high: Math.max(...seconds),
    runs: seconds.length,
    ...(idle.length > 0 && { idle: median(idle) }),
    ...(kernels && { kernels: [...new Set(kernels)] }),
  };
}
