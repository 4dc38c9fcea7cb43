// Tests two hosts with two ranks each. The hosts are network namespaces with their own host names, which `npm run
// test:hosts` makes. Launchers, agents and the emulated NCCL reach the other host only over the bridge.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { cuda } from "@mosaic/kernels-cuda";
import { expect, onTestFinished, test } from "vitest";
import { bundled } from "../../../vitest.program.ts";
import { world } from "../src/index.ts";
import { emulate } from "./emulated.ts";
import { computeExchangeDigest } from "./exchanges.ts";

emulate();
const program = await bundled(new URL("fixtures/host-rank.ts", import.meta.url));
const launcher = fileURLToPath(new URL("../../launcher/dist/cli.js", import.meta.url));

interface RankEvent {
  readonly event: string;
  readonly rank: number;
  readonly pid: number;
  readonly name?: string;
  readonly message?: string;
  readonly at?: number;
  readonly digest?: string;
  readonly interfaces?: string;
}

type Environment = Readonly<Record<string, string>>;

/** The launchers of a job on n0 and n1, and the events that their ranks report. */
class Job {
  readonly exitCodes: readonly Promise<number | null>[];
  /** Output by stream. In one text, lines of two streams would be mixed. */
  readonly #outputs: string[] = [];

  constructor(scenario: string, env: Environment = {}) {
    const directory = mkdtempSync(join(tmpdir(), "mosaic-nccl-hosts-"));
    writeFileSync(join(directory, "token"), "0123456789abcdef0123456789abcdef", { mode: 0o600 });
    this.exitCodes = [0, 1].map((host) =>
      this.#launch(host, scenario, { MOSAIC_TOKEN_FILE: join(directory, "token"), ...env }),
    );
    onTestFinished(async () => {
      for (const host of [0, 1]) this.killHost(host);
      await Promise.all(this.exitCodes);
      rmSync(directory, { recursive: true });
    });
  }

  #launch(host: number, scenario: string, env: Environment): Promise<number | null> {
    const options = ["-N", "2", "--node-rank", `${host}`, "--rdzv-endpoint", "10.77.0.10:29400", "-n", "2"];
    // The grace period gives ranks time to report their errors before they are killed.
    const command = [process.execPath, launcher, ...options, "--failure-grace", "8s", program, scenario];
    const namespacedCommand = ["unshare", "--uts", "sh", "-c", `hostname n${host}; exec "$@"`, "sh", ...command];
    const child = spawn("ip", ["netns", "exec", `n${host}`, ...namespacedCommand], { env: { ...process.env, ...env } });
    for (const stream of [child.stdout, child.stderr]) {
      const index = this.#outputs.push("") - 1;
      stream.on("data", (chunk: Buffer) => (this.#outputs[index] += String(chunk)));
    }
    return new Promise((resolve) => child.on("close", resolve));
  }

  /** Kills all processes of a host at the same time. */
  killHost(host: number): void {
    const pids = execFileSync("ip", ["netns", "pids", `n${host}`], { encoding: "utf8" })
      .split("\n")
      .filter(Boolean);
    for (const pid of pids) {
      try {
        process.kill(Number(pid), "SIGKILL");
      } catch (error) {
        // The process has exited meanwhile.
        if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
      }
    }
  }

  /** Resolves to the event of each of these ranks, once all have reported it. */
  async waitForEvents(event: string, ranks: readonly number[]): Promise<readonly RankEvent[]> {
    const findEvents = (): readonly RankEvent[] => {
      const lines = [...this.#outputs.join("\n").matchAll(/\{"event":.*\}$/gm)].map(
        ([line]) => JSON.parse(line) as RankEvent,
      );
      return ranks.flatMap((rank) => lines.filter((each) => each.event === event && each.rank === rank));
    };
    await expect
      .poll(() => (findEvents().length === ranks.length ? "all" : this.#outputs.join("\n")), {
        timeout: 30_000,
        interval: 20,
      })
      .toBe("all");
    return findEvents();
  }
}

/** Returns the bytes that a host has sent to the others. */
function bytesSent(host: number): number {
  const linkJson = execFileSync("ip", ["-json", "-stats", "link", "show", `v${host}`], { encoding: "utf8" });
  const [link] = JSON.parse(linkJson) as { readonly stats64: { readonly rx: { readonly bytes: number } } }[];
  return link!.stats64.rx.bytes;
}

const allRanks = [0, 1, 2, 3];

test("every collective gives the same bits as in one process, on all ranks and along the mesh axes", async () => {
  const contexts = await world(4, { device: () => cuda({ index: 0 }), mesh: { node: 2, local: 2 } });
  const expected = await Promise.all(contexts.map(computeExchangeDigest));
  await Promise.all(contexts.map((ctx) => ctx.close()));
  const bytesBefore = bytesSent(0);
  const job = new Job("exchanges", { MOSAIC_TEST_NETWORK: "10.77.0.0/24" });
  const events = await job.waitForEvents("exchanged", allRanks);
  expect(events.map(({ digest }) => digest)).toEqual(expected);
  expect(events.map(({ interfaces }) => interfaces)).toEqual(allRanks.map(() => "=eth0"));
  expect(await Promise.all(job.exitCodes)).toEqual([0, 0]);
  // A lower bound: in the all-gather alone, each of two ranks sends its share to two ranks of the other host.
  expect(bytesSent(0) - bytesBefore).toBeGreaterThan(2 * 2 * 300_007 * 4);
});

test("NCCL_SOCKET_IFNAME of the environment takes precedence over the option", async () => {
  const job = new Job("exchanges", { MOSAIC_TEST_NETWORK: "127.0.0.0/8", NCCL_SOCKET_IFNAME: "eth" });
  const events = await job.waitForEvents("exchanged", allRanks);
  expect(events.map(({ interfaces }) => interfaces)).toEqual(allRanks.map(() => "eth"));
  expect(await Promise.all(job.exitCodes)).toEqual([0, 0]);
});

test("a network that the hosts do not share makes every rank time out with an error that states the remedy", async () => {
  const job = new Job("streams", { MOSAIC_TEST_NETWORK: "lo", MOSAIC_TEST_TIMEOUT: "3" });
  for (const { message } of await job.waitForEvents("failed", allRanks)) {
    expect(message).toMatch(
      /^connect: rank \d: nccl timed out after 3 s while connecting the ranks; set NCCL_DEBUG=INFO .*a shared network with nccl\(\{ network \}\)/,
    );
  }
});

test("a network that a host lacks is an error that lists the interfaces", async () => {
  const job = new Job("streams", { MOSAIC_TEST_NETWORK: "10.99.0.0/16" });
  for (const { name, message } of await job.waitForEvents("failed", allRanks)) {
    expect(name).toBe("OptionError");
    expect(message).toMatch(
      /nccl: network: .*in the subnet 10\.99\.0\.0\/16, received interfaces lo .*eth0 \(10\.77\.0\.1/,
    );
  }
});

test.each([0, 3])(
  "the death of rank %i during a transfer is reported by all other ranks, with its host",
  async (killedRank) => {
    const job = new Job("streams");
    const streamingEvents = await job.waitForEvents("streaming", allRanks);
    const { pid } = streamingEvents[killedRank]!;
    const startTime = Date.now();
    process.kill(pid, "SIGKILL");
    const remainingRanks = allRanks.filter((rank) => rank !== killedRank);
    for (const { name, message, at } of await job.waitForEvents("failed", remainingRanks)) {
      expect(name).toBe("PeerLostError");
      expect(message).toContain(`rank ${killedRank} (pid ${pid} on n${killedRank >> 1}`);
      expect(message).toMatch(/ died/);
      expect(at! - startTime).toBeLessThan(2000);
    }
    expect(await Promise.all(job.exitCodes)).toEqual([137, 137]);
  },
);

test("the death of a host is reported by the ranks of the other host, with one of its ranks", async () => {
  const job = new Job("streams");
  await job.waitForEvents("streaming", allRanks);
  const startTime = Date.now();
  job.killHost(1);
  for (const { name, message, at } of await job.waitForEvents("failed", [0, 1])) {
    expect(name).toBe("PeerLostError");
    expect(message).toMatch(/rank [23] \(pid \d+ on n1.*\) died/);
    expect(at! - startTime).toBeLessThan(2000);
  }
  expect(await job.exitCodes[0]).toBe(75);
});

test("a network link that goes down is reported by both sides within 5 s", async () => {
  const job = new Job("streams", { MOSAIC_TEST_TIMEOUT: "60" });
  await job.waitForEvents("streaming", allRanks);
  const startTime = Date.now();
  execFileSync("ip", ["link", "set", "v1", "down"]);
  try {
    for (const { rank, name, message, at } of await job.waitForEvents("failed", allRanks)) {
      expect(name).toBe("PeerLostError");
      expect(message).toMatch(
        rank < 2
          ? /rank [23] \(pid \d+ on n1; no heartbeat for 2\.5 s\) died/
          : /^lost the connection to the agent of this host \(no heartbeat from the parent agent for 2\.5 s\); rank \d needed/,
      );
      expect(at! - startTime).toBeLessThan(5000);
    }
    expect(await Promise.all(job.exitCodes)).toEqual([75, 75]);
  } finally {
    execFileSync("ip", ["link", "set", "v1", "up"]);
  }
});

test("a stopped rank makes the other ranks time out with an error that names it and its host", async () => {
  const job = new Job("streams", { MOSAIC_TEST_TIMEOUT: "3" });
  const streamingEvents = await job.waitForEvents("streaming", allRanks);
  const { pid } = streamingEvents[3]!;
  const startTime = Date.now();
  process.kill(pid, "SIGSTOP");
  for (const { name, message, at } of await job.waitForEvents("failed", [0, 1, 2])) {
    expect(name).toBe("CollectiveTimeoutError");
    expect(message).toMatch(/timed out after 3 s: rank \d waits in sendRecv #\d+ \(world\);/);
    expect(message).toContain(`rank 3 (pid ${pid} on n1) does not respond`);
    expect(at! - startTime).toBeGreaterThan(2500);
    expect(at! - startTime).toBeLessThan(6000);
  }
  process.kill(pid, "SIGCONT");
});
