import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Job } from "@mosaic/conformance";
import { Agent } from "@mosaic/launcher/agent";
import { bundled } from "../../../vitest.program.ts";
import type { HostOf } from "./ranks.ts";

/** Program of each rank. */
export const script: string = await bundled(new URL("fixtures/rank.ts", import.meta.url));

let jobCount = 0;

/**
 * Opens jobs of ranks on simulated hosts. Each host has its own agent, as with `mosaic-run`. MOSAIC_TEST_HOST is the
 * host number.
 */
export function createJobOpener(hostOf: HostOf): (size: number) => Promise<Job> {
  return async (size) => {
    const directory = mkdtempSync(join(tmpdir(), "mosaic-ucx-"));
    const hosts = Array.from({ length: size }, (_, rank) => hostOf(rank));
    const count = Math.max(...hosts) + 1;
    const agents: Agent[] = [];
    for (let index = 0; index < count; index++) {
      const root = agents[0]?.address;
      const treeOptions = index === 0 ? { children: count > 1 } : { index, ...(root !== undefined && { root }) };
      agents.push(await Agent.listen({ path: join(directory, `n${index}`), host: `n${index}`, ...treeOptions }));
    }
    const run = `ucx-test-${process.pid}-${jobCount++}`;
    return {
      env: (rank) => ({
        RANK: String(rank),
        WORLD_SIZE: String(size),
        LOCAL_RANK: String(hosts.slice(0, rank).filter((host) => host === hosts[rank]).length),
        LOCAL_WORLD_SIZE: String(hosts.filter((host) => host === hosts[rank]).length),
        MOSAIC_AGENT: agents[hosts[rank]!]!.path,
        MOSAIC_RUN_ID: run,
        MOSAIC_ATTEMPT: "0",
        MOSAIC_TEST_HOST: String(hosts[rank]),
        UCX_TLS: "tcp",
      }),
      async [Symbol.asyncDispose]() {
        await Promise.all(agents.map((agent) => agent.close()));
        rmSync(directory, { recursive: true, force: true });
      },
    };
  };
}
