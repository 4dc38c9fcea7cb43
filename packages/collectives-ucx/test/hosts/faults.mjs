// Injects random faults into jobs on three hosts: `npm run test:faults -- [--count 1000] [--seed 1] [--only "rank is
// killed"]`. Each job must end in time with the error of the fault, name rank and host, and leave no process. A job
// that a fault only slows down must complete with the same bits.
import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual, parseArgs } from "node:util";

const { values } = parseArgs({
  options: {
    count: { type: "string", default: "30" },
    seed: { type: "string", default: "1" },
    only: { type: "string" },
  },
});
const launcher = join(
  dirname(createRequire(import.meta.url).resolve("@mosaic/launcher/package.json")),
  "bin/mosaic-run.js",
);
const program = join(import.meta.dirname, "fault-rank.mjs");
const HOSTS = 3;
/** Timeout of collectives in seconds; maximum milliseconds from the fault, or from the timeout, to the end of a job. */
const TIMEOUT = 3;
const LIMIT_MS = 5000;
const workDirectory = mkdtempSync(join(tmpdir(), "mosaic-faults-"));
process.on("exit", () => rmSync(workDirectory, { recursive: true, force: true }));
const writeSecretFile = (name) => {
  const path = join(workDirectory, name);
  writeFileSync(path, randomBytes(32).toString("hex"), { mode: 0o600 });
  return path;
};
const [secret, otherSecret] = [writeSecretFile("secret"), writeSecretFile("other")];
const otherEntry = join(workDirectory, "other-entry.mjs");
writeFileSync(otherEntry, "// not the same program\n");

const ip = (...words) => execFileSync("ip", words);
const nft = (host, rules) => execFileSync("ip", ["netns", "exec", `n${host}`, "nft", rules]);
const createDropRules = (share) => `table inet loss {
  chain i { type filter hook input priority 0; iifname eth0 ${share} drop; }
  chain o { type filter hook output priority 0; oifname eth0 ${share} drop; }
}`;
const listHostPids = (host) =>
  execFileSync("ip", ["netns", "pids", `n${host}`], { encoding: "utf8" })
    .split("\n")
    .filter(Boolean);

/** A job of three launchers, with two ranks on the first host and one on each of the others. */
class Job {
  constructor(port, { job = {}, launcherOf = () => ({}) }) {
    const settings = { timeout: TIMEOUT, ...job };
    this.nodes = Array.from({ length: HOSTS }, (_, host) => {
      const { nodeRank = host, token = secret, entry = program } = launcherOf(host);
      const options = ["-N", `${HOSTS}`, "--node-rank", `${nodeRank}`, "--rdzv-endpoint", `10.77.0.10:${port}`];
      const ranks = ["-n", host === 0 ? "2" : "1", "--log-dir", join(workDirectory, `logs-${port}-${host}`)];
      const command = [process.execPath, launcher, ...options, ...ranks, entry, JSON.stringify(settings)];
      const env = { ...process.env, MOSAIC_TOKEN_FILE: token, UCX_TLS: "tcp,self" };
      const child = spawn("ip", ["netns", "exec", `n${host}`, ...command], { env, stdio: ["ignore", "pipe", "pipe"] });
      const ended = new Promise((resolve) =>
        child.on("close", (code, signal) => resolve({ code: code ?? signal, at: performance.now() })),
      );
      const node = { child, output: "", ended };
      for (const stream of [child.stdout, child.stderr]) stream.on("data", (text) => (node.output += text));
      return node;
    });
  }

  get output() {
    return this.nodes.map(({ output }, host) => `--- host ${host}\n${output}`).join("\n");
  }

  async waitForStreaming() {
    for (const deadline = performance.now() + 20_000; ; await sleep(5)) {
      if ((this.output.match(/streaming/g) ?? []).length === HOSTS + 1) return;
      if (performance.now() > deadline) throw new Error(`the job did not start\n${this.output}`);
    }
  }

  /** Returns the process id of a rank or of a launcher. */
  findPid(processKind, host) {
    const [foundPid] = listHostPids(host).filter((pid) => {
      const command = execFileSync("cat", [`/proc/${pid}/cmdline`], { encoding: "utf8" }).split("\0");
      const isLauncher = command.includes("--node-rank");
      return processKind === "launcher"
        ? isLauncher && command[0].endsWith("node")
        : !isLauncher && command.includes(program);
    });
    return Number(foundPid);
  }
}

const firstRankOfHost = { 0: 0, 1: 2, 2: 3 };
const lostNodePattern = (host) => new RegExp(`node ${host}\\b.*(was lost|lost)|lost .*node ${host}\\b`, "s");

/**
 * The faults: how the job is started, the action while it streams, and the expected exit codes and output of its
 * launchers.
 */
const faults = {
  "rank is killed": ({ host }) => ({
    act: (job) => process.kill(job.findPid("rank", host), "SIGKILL"),
    codes: [137, 137, 137],
    printed: new RegExp(`rank ${host === 0 ? "[01]" : firstRankOfHost[host]} \\(node ${host}.*SIGKILL`, "s"),
  }),
  "launcher is killed": ({ host }) => ({
    act: (job) => process.kill(job.findPid("launcher", host), "SIGKILL"),
    codes: [75, 75, 75].map((code, i) => (i === host ? "SIGKILL" : code)),
    printed: lostNodePattern(host),
  }),
  "rank is stopped": ({ host }) => ({
    act: (job) => process.kill(job.findPid("rank", host), "SIGSTOP"),
    deadline: TIMEOUT,
    printed: new RegExp(`CollectiveTimeoutError[^]*timed out after ${TIMEOUT} s`),
  }),
  "interface goes down": ({ host }) => ({
    act: () => ip("-n", `n${host}`, "link", "set", "eth0", "down"),
    heal: () => ip("-n", `n${host}`, "link", "set", "eth0", "up"),
    codes: [75, 75, 75],
    printed: host === 0 ? /node 0 was lost|lost/ : lostNodePattern(host),
  }),
  "cable is cut": ({ host }) => ({
    act: () => ip("link", "set", `v${host}`, "down"),
    heal: () => ip("link", "set", `v${host}`, "up"),
    codes: [75, 75, 75],
    printed: host === 0 ? /node 0 was lost|lost/ : lostNodePattern(host),
  }),
  "packets are dropped": ({ host }) => ({
    act: () => nft(host, createDropRules("")),
    heal: () => nft(host, "flush ruleset"),
    codes: [75, 75, 75],
    printed: host === 0 ? /node 0 was lost|lost/ : lostNodePattern(host),
  }),
  "rank throws": ({ culprit, at }) => ({
    job: { culprit, at, fault: "throws" },
    codes: [1, 1, 1],
    printed: new RegExp(`rank ${culprit} \\(node.*TypeError: bad loss`, "s"),
  }),
  "call is mismatched": ({ culprit, at }) => ({
    job: { culprit, at, fault: "mismatch" },
    codes: [1, 1, 1],
    printed: /CollectiveMismatchError: /,
  }),
  "rank is late": ({ culprit }) => ({
    job: { culprit, fault: "late", lateMs: 60_000 },
    deadline: TIMEOUT + 2,
    codes: [1, 1, 1],
    printed: new RegExp(`CollectiveTimeoutError[^]*rank ${culprit}\\b`),
  }),
  "secret is wrong": ({ host }) => ({
    launcherOf: (each) => (each === host ? { token: otherSecret } : {}),
    refused: host === 0 ? 1 : host,
    printed: /the shared secrets do not match/,
  }),
  "node rank is there twice": ({ host }) => ({
    launcherOf: (each) => (each === (host || 1) ? { nodeRank: 3 - (host || 1) } : {}),
    refused: host || 1,
    printed: /node rank|--node-rank/,
  }),
  "entry differs": ({ host }) => ({
    launcherOf: (each) => (each === (host || 1) ? { entry: otherEntry } : {}),
    refused: host || 1,
    printed: /entry/,
  }),
  "one packet of a hundred is lost": ({ host }) => ({
    act: () => nft(host, createDropRules("numgen random mod 100 < 1")),
    heal: () => nft(host, "flush ruleset"),
    job: { rounds: 12 },
    completes: true,
  }),
  "link has 1 Gbit/s": ({ host }) => ({
    act: () => execFileSync("tc", `qdisc add dev v${host} root tbf rate 1gbit burst 256kb latency 50ms`.split(" ")),
    heal: () => execFileSync("tc", ["qdisc", "del", "dev", `v${host}`, "root"]),
    job: { rounds: 12 },
    completes: true,
  }),
};

function createRandom(seed) {
  let state = seed >>> 0;
  return (count) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * count);
  };
}

const parseDigests = (job) => new Set([...job.output.matchAll(/digest (\w+)/g)].map(([, digest]) => digest));
let port = 30_000;
let expectedDigests;

function check(isTrue, expectation, job) {
  if (!isTrue) throw new Error(`${expectation}\n${job.output}`);
}

async function runWithFault(name, seed) {
  const random = createRandom(seed);
  const fault = faults[name]({ host: random(HOSTS), culprit: random(HOSTS + 1), at: 4 + random(20) });
  const job = new Job(port++, fault);
  const startTime = performance.now();
  const isStreaming = !fault.job?.lateMs && !fault.launcherOf;
  try {
    if (isStreaming && !fault.completes) await job.waitForStreaming();
    if (fault.act) await sleep(random(400));
    fault.act?.(job);
    let faultTime = performance.now();
    if (fault.refused !== undefined) {
      // The rejected launcher exits. The others keep waiting: for it, if only it was rejected, or else for the first
      // host.
      const { code, at } = await job.nodes[fault.refused].ended;
      check(at - startTime < LIMIT_MS, `refused after ${(at - startTime).toFixed(0)} ms`, job);
      check(code === 2, `exit code ${code} of the refused launcher`, job);
      for (const { child } of job.nodes) child.kill("SIGTERM");
    }
    const exits = await Promise.race([
      Promise.all(job.nodes.map(({ ended }) => ended)),
      sleep(30_000).then(() => check(false, "did not end within 30 s", job)),
    ]);
    if (fault.job?.lateMs) faultTime = startTime;
    if (fault.completes) faultTime = Math.max(...exits.map(({ at }) => at));
    const codes = exits.map(({ code }) => code);
    const endMs = Math.max(...exits.map(({ at }) => at)) - faultTime;
    check(endMs < LIMIT_MS + 1000 * (fault.deadline ?? 0), `ended after ${endMs.toFixed(0)} ms`, job);
    check(
      !codes.includes(139) && !codes.includes("SIGSEGV") && !/SIGSEGV|SIGABRT|exit 139/.test(job.output),
      "crashed",
      job,
    );
    check(!job.output.includes("CHANGED"), "an operand has changed", job);
    if (fault.codes) check(codes.join() === fault.codes.join(), `exit codes ${codes}, expected ${fault.codes}`, job);
    else if (fault.completes)
      check(
        codes.every((code) => code === 0),
        `exit codes ${codes}`,
        job,
      );
    else
      check(
        codes.every((code) => code !== 0),
        `exit codes ${codes}`,
        job,
      );
    if (fault.completes) {
      expectedDigests ??= await runWithoutFault();
      check(isDeepStrictEqual(parseDigests(job), expectedDigests), "other bits than without the fault", job);
    } else check(fault.printed.test(job.output), `does not print ${fault.printed}`, job);
    for (let host = 0; host < HOSTS; host++) {
      for (const deadline = performance.now() + 3000; listHostPids(host).length > 0 && performance.now() < deadline; )
        await sleep(20);
      check(listHostPids(host).length === 0, `processes left on host ${host}: ${listHostPids(host)}`, job);
    }
    return endMs;
  } finally {
    fault.heal?.();
    for (let host = 0; host < HOSTS; host++)
      for (const pid of listHostPids(host))
        try {
          process.kill(Number(pid), "SIGKILL");
        } catch {}
  }
}

async function runWithoutFault() {
  const job = new Job(port++, { job: { rounds: 12 } });
  const exits = await Promise.all(job.nodes.map(({ ended }) => ended));
  check(
    exits.every(({ code }) => code === 0),
    "the withoutFault job failed",
    job,
  );
  return parseDigests(job);
}

const names = Object.keys(faults).filter((name) => values.only === undefined || name === values.only);
const [count, firstSeed] = [Number(values.count), Number(values.seed)];
const maxMsByFault = new Map();
let numFailed = 0;
for (let i = 0; i < count; i++) {
  const name = names[i % names.length];
  const seed = Math.imul(firstSeed, 0x9e3779b1) + i;
  try {
    maxMsByFault.set(name, Math.max(maxMsByFault.get(name) ?? 0, await runWithFault(name, seed)));
  } catch (error) {
    numFailed++;
    console.error(`FAILED: ${name}, number ${i} of seed ${firstSeed}: ${error.message}\n`);
  }
}
for (const [name, ms] of maxMsByFault) if (ms > 0) console.log(`${name}: ${(ms / 1000).toFixed(1)} s at most`);
console.log(`${count - numFailed} of ${count} faults ended as they must`);
process.exitCode = numFailed > 0 ? 1 : 0;
