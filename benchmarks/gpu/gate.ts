import type { Bench, Case, Result } from "./bench.ts";
import type { Errors } from "./contender.ts";
import { PeerRefusal } from "../src/peer.ts";
import type { Problem } from "./problem.ts";
import { tolerances } from "./right.ts";

/** A length that no block size divides. */
const LENGTH = 200;
const HEADS = 2;

type Kind = Pick<Problem, "dtype" | "mask" | "d">;
const gateName = ({ dtype, mask, d }: Kind): string => `gate.${dtype}.${mask}.d${d}`;

/** Every contender's results on fresh numbers, against float64, before any of its times counts. */
export function gateCase(kind: Kind): Case {
  const name = gateName(kind);
  const problem: Problem = { ...kind, direction: "backward", n: LENGTH, numHeads: HEADS, batch: 1 };
  return {
    name,
    part: "gate",
    async run(bench): Promise<Result> {
      const errors: Record<string, Errors> = {};
      const refused: Record<string, string> = {};
      for (const contender of await bench.contenders()) {
        try {
          errors[contender.name] = await contender.check(problem);
        } catch (error) {
          if (!(error instanceof PeerRefusal)) throw error;
          refused[contender.name] = error.message;
        }
      }
      const wrong = Object.keys(errors).filter((who) => !isRight(errors[who]!, kind));
      return { case: name, errors, refused, wrong };
    },
  };
}

/** NaN is not right. */
export function isRight(errors: Errors, { dtype }: Pick<Problem, "dtype">): boolean {
  return Object.values(errors).every((error) => error < tolerances[dtype]);
}

/** Who may take part in a problem: those that passed its gate, which is run now if it was not before. */
export async function passed(
  bench: Bench,
  kind: Kind,
  kept: ReadonlyMap<string, Result>,
): Promise<ReadonlySet<string>> {
  const result = kept.get(gateName(kind)) ?? (await gateCase(kind).run(bench));
  const wrong = result["wrong"] as readonly string[];
  return new Set(Object.keys(result["errors"] as object).filter((who) => !wrong.includes(who)));
}
