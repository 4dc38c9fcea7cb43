import { type Detected, detectOn } from "../../detect.ts";
import { type Check, note, ok, problem } from "../finding.ts";
import type { Answer, System } from "../system.ts";

/** What `init()` without options comes to here. */
export const choice: Check = {
  name: "init()",
  async run(system) {
    try {
      const { device, collectives, note: why } = await detectedOn(system);
      const reason = system.env["MOSAIC_DEVICE"] ? ", as MOSAIC_DEVICE says" : "";
      return [
        ok(`computes on device "${device}", ranks connected by "${collectives}"${reason}`),
        ...(why === undefined ? [] : [note(why)]),
      ];
    } catch (error) {
      return [problem((error as Error).message)];
    }
  },
};

async function detectedOn({ env, exists, ask }: System): Promise<Detected> {
  const cuda = await ask("cuda");
  // Outside of a job: what a job of one rank for each GPU would come to.
  const gpus = "value" in cuda ? Math.max(1, cuda.value.gpus.length) : 1;
  const ranks = env["WORLD_SIZE"] === undefined ? { worldSize: gpus, localRanks: gpus } : {};
  const machine = { env, exists, cuda: () => valueOf(ask("cuda")), nccl: () => valueOf(ask("nccl")) };
  return detectOn(machine, ranks);
}

async function valueOf<T>(asked: Promise<Answer<T>>): Promise<T> {
  const answer = await asked;
  if ("value" in answer) return answer.value;
  const { message, remedy } = answer.error;
  throw new Error(remedy === undefined ? message : `${message}; ${remedy}`);
}
