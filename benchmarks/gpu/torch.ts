import type { Contender, Errors, Sample } from "./contender.ts";
import type { Peer } from "../src/peer.ts";
import type { Problem } from "./problem.ts";

/** What PyTorch's scaled_dot_product_attention may be told to use. */
export const torchBackends = ["cudnn", "flash", "efficient"] as const;

/** One backend of PyTorch, in the peer's process. */
export function torchContender(peer: Peer, backend: string): Contender {
  return {
    name: backend,
    check: (problem) => peer.ask<Errors>({ op: "check", backend, problem }),
    async prepare(problem: Problem) {
      const { seconds } = await peer.ask<Sample>({ op: "prepare", backend, problem });
      return seconds[0]!;
    },
    sample: (count) => peer.ask<Sample>({ op: "sample", backend, count }),
    async release() {
      await peer.ask({ op: "release" });
    },
  };
}
