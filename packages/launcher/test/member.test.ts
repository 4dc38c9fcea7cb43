import type { Duplex } from "node:stream";
import { afterEach, expect, it, vi } from "vitest";
import { Agent } from "../src/agent/agent.ts";
import { encode } from "../src/agent/frames.ts";
import { TLS_PROTOCOLS, TlsServer } from "../src/agent/tls.ts";
import type { NodeControl } from "../src/coordinator.ts";
import type { LaunchPlan, NodesPlan } from "../src/launch-plan.ts";
import { MemberCoordinator } from "../src/nodes/member.ts";
import { OUTCOMES } from "../src/nodes/peer.ts";
import { SECRET } from "./nodes.ts";

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

it.each([
  ["cancelled", "SIGTERM", 15],
  ["timed-out", "SIGTERM", 15],
] as const)(
  "keeps a request to stop (%s) that arrives while the agent is started, if node 0 is lost before it listens",
  async (outcome, signal, number) => {
    vi.stubEnv("MOSAIC_TOKEN_FILE", undefined);
    vi.stubEnv("MOSAIC_TOKEN", SECRET);
    const server = await TlsServer.listen({ secret: SECRET });
    server.serve(TLS_PROTOCOLS.node, (stream: Duplex) => {
      stream.resume();
      const sizes = { attempt: 0, worldSize: 2, firstRank: 1, groupRank: 1, groupWorldSize: 2 };
      stream.write(encode({ kind: "assign", run: "run", ...sizes }));
      stream.end(encode({ kind: "stop", signal: number, outcome: OUTCOMES[outcome], reason: "signalled" }));
    });
    let notifyLoss: () => void = () => {};
    const loss = new Promise<void>((resolve) => (notifyLoss = resolve));
    const end = vi.fn<NodeControl["end"]>();
    const control = {
      ...{ end, kill: () => {}, isEnding: () => false, emit: () => {} },
      stopRanks: () => notifyLoss(),
    };
    const listen = Agent.listen.bind(Agent);
    vi.spyOn(Agent, "listen").mockImplementation(async (options) => {
      await loss;
      return listen(options);
    });
    const [host = "", port] = server.address.split(":");
    const nodes = {
      ...{ min: 2, max: 2, nodeRank: 1, timeoutMs: 10_000, lastCallMs: 0, bindsAllAddresses: false },
      ...{ endpoint: { host, port: Number(port) }, commandText: "train.ts", digest: "9f" },
    } satisfies NodesPlan;
    const plan = { runId: "run", node: "b", nproc: 1, rdzvId: "none" } as LaunchPlan;
    const member = new MemberCoordinator(plan, nodes, control);
    try {
      expect(await member.beginAttempt()).toMatchObject({ attempt: 0, worldSize: 2, firstRank: 1 });
      const request = { outcome, signal, reason: "signalled" };
      expect(await member.endAttempt([], () => undefined)).toEqual({ stop: request });
      await vi.waitFor(() => expect(end).toHaveBeenCalledExactlyOnceWith(request));
    } finally {
      await member.close();
      server.close();
    }
  },
);
