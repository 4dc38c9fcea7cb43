import { randomBytes } from "node:crypto";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { hostname, networkInterfaces } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { formatAgentOptions, type HostsSettings, isLocal, parseHosts } from "../src/options/hosts.ts";
import { parseCommandLine } from "../src/options/parse.ts";
import { resolveSources } from "../src/options/sources.ts";
import { OptionValues } from "../src/options/values.ts";
import {
  listChildren,
  readCommand,
  INDEX,
  isAlive,
  listLivingProcesses,
  mosaicRun,
  program,
  type RunningProcess,
  temporaryDir,
  testDir,
  waitUntil,
} from "./harness.ts";

type Env = Readonly<Record<string, string | undefined>>;

const SECRET = randomBytes(32).toString("hex");
let lastPort = 31_000 + (process.pid % 100) * 10;
const sshLog = (): string => join(testDir(), "ssh.log");

/** Starts a job on hosts that the stand-in for ssh emulates, all on this machine. */
function launch(hosts: string, args: readonly string[], env: Env = {}): RunningProcess {
  const options = ["--hosts", hosts, "--rdzv-endpoint", `127.0.0.8:${lastPort++}`, "--ssh", program("ssh.sh")];
  return mosaicRun([...options, ...args], {
    env: { SSH_LOG: sshLog(), NODE: process.execPath, TEST_INDEX: INDEX, ...env },
  });
}

const scriptArgs = (...args: string[]): string[] => ["--env", "TEST_INDEX", program("node.mjs"), ...args];
const splitLines = (text: string): string[] => text.trim().split("\n").toSorted();
/** Returns the processes of agents, ranks and the stand-in for ssh. */
const otherProcesses = (job: RunningProcess): number[] => listLivingProcesses().filter((pid) => pid !== job.pid);
const readEnvironment = (pid: number): string => {
  try {
    return readFileSync(`/proc/${pid}/environ`, "latin1");
  } catch {
    return "";
  }
};

/** Waits until the guards of killed agents have ended all processes and removed the private directories. */
const expectNoProcesses = (): Promise<void> =>
  waitUntil(
    () =>
      listLivingProcesses().length === 0 &&
      readdirSync(temporaryDir()).every((name) => !name.startsWith("mosaic-run-")),
    () => `left: ${listLivingProcesses().map(readCommand).join("\n")}`,
  );

describe("a job on hosts", () => {
  it("starts an agent on each host over ssh, numbers ranks in host order, and prefixes output with the host", async () => {
    const { code, stdout, stderr } = await launch("n0:2,n1", ["-n", "1", ...scriptArgs()]).outcome;
    expect(stderr).toBe("");
    const formatLine = (host: string, rank: number, rest: string): string =>
      `[${host}:${rank}] attempt 0: ${rank} ${rest}`;
    expect(splitLines(stdout)).toEqual([
      formatLine("n0", 0, "0 3 2 0 2 127.0.0.8"),
      formatLine("n0", 1, "1 3 2 0 2 127.0.0.8"),
      formatLine("n1", 2, "0 3 1 1 2 127.0.0.8"),
    ]);
    expect(code).toBe(0);
    const calls = splitLines(readFileSync(sshLog(), "utf8"));
    expect(calls).toHaveLength(2);
    for (const call of calls) expect(call).toMatch(/^-o BatchMode=yes .*-T n[01] exec \/bin\/sh -c /);
  });

  it("reads hosts from a file, and requires no secret, endpoint or node rank for a single host", async () => {
    writeFileSync(join(testDir(), "hosts"), "# the job's\n\nn7 slots=2 # two GPUs\n");
    const options = [
      "--hostfile",
      "hosts",
      "--ssh",
      program("ssh.sh"),
      "--exec",
      "sh",
      "-c",
      "echo $RANK of $WORLD_SIZE",
    ];
    const { code, stdout } = await mosaicRun(options, { env: { SSH_LOG: sshLog() } }).outcome;
    expect(code).toBe(0);
    expect(splitLines(stdout)).toEqual(["[n7:0] 0 of 2", "[n7:1] 1 of 2"]);
  });

  it("starts the agent of this machine without ssh", async () => {
    const { code, stdout } = await launch("localhost,n1", ["-n", "1", ...scriptArgs()]).outcome;
    expect(code).toBe(0);
    expect(splitLines(stdout)).toMatchObject(
      [/^\[localhost:0\] attempt 0: 0 /, /^\[n1:1\] attempt 0: 1 /].map((one) => expect.stringMatching(one)),
    );
    expect(splitLines(readFileSync(sshLog(), "utf8"))).toHaveLength(1);
  });

  it("passes the secret and variables on standard input, not on command lines or in agents' environments", async () => {
    const value = `value '"$HOME\n of ${randomBytes(8).toString("hex")}`;
    const env = { MOSAIC_TOKEN: SECRET, FORWARDED: value };
    const script = 'echo "$FORWARDED/$GIVEN/$UNNAMED/${MOSAIC_TOKEN-none}"; exec sleep 600';
    const options = ["-n", "1", "--env", "FORWARDED", "--env", "GIVEN=its own", "--exec", "sh", "-c", script];
    const job = launch("n0,n1", options, { ...env, UNNAMED: "not forwarded" });
    await job.waitForOutput("/its own//none", 2);
    const [, line = ""] = value.split("\n");
    expect(job.output().split(`[n0:0] ${line}/its own//none`)).toHaveLength(2);
    const pids = otherProcesses(job);
    expect(pids.length).toBeGreaterThanOrEqual(4);
    for (const pid of pids) {
      const command = readCommand(pid);
      expect(command).not.toContain(SECRET);
      expect(command).not.toContain(line);
      expect(command).not.toContain("its own");
      expect(readEnvironment(pid).includes(SECRET), command).toBe(false);
    }
    job.child.kill("SIGINT");
    const { code, stdout, stderr } = await job.outcome;
    expect(code).toBe(130);
    for (const text of [stdout, stderr, readFileSync(sshLog(), "utf8")]) expect(text).not.toContain(SECRET);
  });

  it("creates a secret if the user has set none", async () => {
    const job = launch("n0,n1", ["-n", "1", ...scriptArgs("waits")]);
    await job.waitForOutput("waits", 2);
    job.child.kill("SIGTERM");
    const { code, stderr } = await job.outcome;
    expect(code).toBe(143);
    expect(stderr).toContain("mosaic-run: SIGTERM: sent SIGTERM to rank 0; SIGKILL in 30 s");
  });

  it("shows events as JSON, each with its host", async () => {
    const { stdout } = await launch("n0,n1", ["-n", "1", "--json", ...scriptArgs()]).outcome;
    const events = stdout
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    const lines = events.filter(({ msg }) => msg !== undefined).map(({ node, rank }) => `${node} ${rank}`);
    expect(lines.toSorted()).toEqual(["n0 0", "n1 1"]);
    const jobEvents = events.filter(({ event }) => event === "start" || event === "end");
    expect(jobEvents.map(({ event, node }) => `${event} ${node}`)).toEqual(["start n0", "end n0"]);
  });

  it("shows what the shell of a host prints, and continues to read the agent's output", async () => {
    const { code, stdout, stderr } = await launch("n0,chatty", ["-n", "1", ...scriptArgs()]).outcome;
    expect(code).toBe(0);
    expect(splitLines(stdout)).toHaveLength(2);
    expect(splitLines(stderr)).toEqual(["[chatty] Welcome to chatty", "[chatty] mind the gap"]);
  });

  it("prints the commands that it would run with --dry-run", async () => {
    const { code, stdout } = await launch("n0,me@n1:3", ["--dry-run", "--json", ...scriptArgs("a b")]).outcome;
    const hosts = JSON.parse(stdout) as { host: string; command: string[] }[];
    expect(code).toBe(0);
    expect(hosts.map(({ host }) => host)).toEqual(["n0", "n1"]);
    expect(hosts[1]?.command.slice(-2)).toEqual([
      "me@n1",
      expect.stringMatching(/--agent-stdin --nproc-per-node=3 --nnodes=2 --node-rank=1 .*--rdzv-endpoint=.* 'a b'$/),
    ]);
    expect(existsSync(sshLog())).toBe(false);
  });
});

describe("a job on hosts after a failure or signal", () => {
  it("has the exit code of a failing rank, and a report that names its host", async () => {
    const { code, stderr } = await launch("n0,n1", ["-n", "1", ...scriptArgs("throws", "1")]).outcome;
    expect(code).toBe(1);
    expect(stderr).toMatch(/✖ rank 1 \(node 1: n1, local 0, pid \d+\) failed .*: TypeError: bad loss\n {4}at /);
    expect(stderr.split("bad loss")).toHaveLength(2);
    expect((await launch("n0,n1", ["-n", "1", ...scriptArgs("exits", "0")]).outcome).code).toBe(42);
  });

  it("leaves no process on any host after SIGKILL of the launcher", async () => {
    const job = launch("localhost,n1", ["-n", "2", ...scriptArgs("waits")]);
    await job.waitForOutput("waits", 4);
    expect(otherProcesses(job).length).toBeGreaterThan(8);
    process.kill(job.pid, "SIGKILL");
    await expectNoProcesses();
  });

  it("ends on a signal that arrives before ssh has connected", async () => {
    const job = launch("n0,hangs", ["-n", "1", ...scriptArgs()]);
    await waitUntil(
      () => otherProcesses(job).some((pid) => readCommand(pid).startsWith("sleep 600")),
      () => "no ssh",
    );
    job.child.kill("SIGTERM");
    const { code } = await job.outcome;
    expect(code).toBe(143);
  });

  it("forwards SIGUSR1, and is killed at the second Ctrl-C", async () => {
    const script = "trap 'echo got USR1' USR1; trap '' INT; echo ready; while :; do sleep 0.05; done";
    const job = launch("n0,n1", ["-n", "1", "--exec", "sh", "-c", script]);
    await job.waitForOutput("ready", 2);
    job.child.kill("SIGUSR1");
    await job.waitForOutput("got USR1", 2);
    job.child.kill("SIGINT");
    await job.waitForOutput("sent SIGINT", 2);
    job.child.kill("SIGINT");
    const { code, ms } = await job.outcome;
    expect(code).toBe(130);
    expect(ms).toBeLessThan(15_000);
  });

  it("ends with 75 when the agent of a host is lost", async () => {
    const job = launch("n0,n1", ["-n", "1", ...scriptArgs("waits")]);
    await job.waitForOutput("waits", 2);
    process.kill(findAgentPid(job, 1), "SIGKILL");
    const { code, stderr } = await job.outcome;
    expect(code).toBe(75);
    expect(stderr).toMatch(/✖ node 1 \(\S+\) was lost \d+\.\d s into attempt 0/);
    const secondJob = launch("n0,n1", ["-n", "1", ...scriptArgs("waits")]);
    await secondJob.waitForOutput("waits", 2);
    process.kill(findAgentPid(secondJob, 0), "SIGKILL");
    const outcome = await secondJob.outcome;
    expect(outcome.code).toBe(75);
    expect(outcome.stderr).toMatch(/mosaic-run: host n0: its agent exited without a result .* {3}exit code 75/);
    await expectNoProcesses();
  });

  it("restarts the agent of a host that is lost while restarts are left", async () => {
    const options = ["-n", "1", "--max-restarts", "1", "--restart-backoff", "1ms"];
    const job = launch("n0,reboots", [...options, ...scriptArgs("waits")]);
    await job.waitForOutput("waits", 2);
    process.kill(findAgentPid(job, 1), "SIGKILL");
    const { code, stdout, stderr } = await job.outcome;
    expect(stderr).toMatch(/mosaic-run: host reboots: its agent exited without a result \(.*\); restarting the agent/);
    expect(code).toBe(0);
    expect(stdout).toContain("[reboots:1] attempt 1: 1 0 2 1 1 2");
    // At the second start the host was not reachable yet.
    expect(splitLines(readFileSync(sshLog(), "utf8"))).toHaveLength(4);
    await expectNoProcesses();
  });

  it("continues without a host that cannot be reached if the other hosts suffice", async () => {
    const options = ["-n", "1", "-N", "1:3", "--last-call", "500ms"];
    const { code, stdout, stderr } = await launch("n0,refused,n2", [...options, ...scriptArgs()]).outcome;
    expect(stderr).toMatch(
      /host refused: connection refused .*; the job continues with the other hosts \(--nnodes 1:3\)/,
    );
    expect(code).toBe(0);
    expect(splitLines(stdout)).toHaveLength(2);
  });

  /**
   * Returns the pid of a node's agent, which is a child of the launcher because the stand-in for ssh replaces itself by
   * it.
   */
  function findAgentPid(job: RunningProcess, rank: number): number {
    const pid = listChildren(job.pid).find((one) => readCommand(one).includes(`--node-rank=${rank}`) && isAlive(one));
    if (pid === undefined) throw new Error("no agent");
    return pid;
  }
});

describe("a job with an unusable host, ssh program or entry", () => {
  it.each([
    ["unknown", 2, /host unknown: unknown host \(ssh: Could not resolve .*\); correct the host name/],
    [
      "me@denied",
      2,
      /host denied: permission denied \(me@denied: .*\); set up ssh login without a password \(ssh-copy-id me@denied/,
    ],
    ["untrusted", 2, /host untrusted: host key verification failed .*: ssh untrusted/],
    [
      "refused",
      75,
      /host refused: connection refused .*; start sshd on that host, or pass the port of sshd: --ssh "ssh -p PORT"/,
    ],
    ["silent", 75, /host silent: cannot connect \(ssh: .* timed out\); check that the host is up/],
    ["nonode", 2, /host nonode: Node is missing; install Node there as \S+node/],
    ["nolauncher", 2, /host nolauncher: @mosaic\/launcher is missing; expected \S+cli\.js: share/],
    ["nodirectory", 2, /host nodirectory: the working directory does not exist; the agent must start in \/\S+: share/],
    ["odd", 75, /host odd: \S+ssh\.sh exited before the agent started \(exit 255\): Bad configuration option: odd/],
  ])("ends with an error that names the host: %s", async (host, expected, message) => {
    const { code, stderr, stdout, ms } = await launch(`n0,${host}`, ["-n", "1", ...scriptArgs()]).outcome;
    expect(stderr).toMatch(message);
    expect(stderr.trim().split("\n")).toHaveLength(1);
    expect(stderr).toContain(`   exit code ${expected}`);
    expect(stdout).toBe("");
    expect(code).toBe(expected);
    expect(ms).toBeLessThan(8000);
  });

  it("ends with an error for a missing ssh program or a missing entry", async () => {
    const failedOutcome = await launch("n0,n1", ["--ssh", "no-such-ssh", ...scriptArgs()]).outcome;
    expect(failedOutcome.stderr).toMatch(
      /host n\d: cannot start no-such-ssh \(ENOENT\); install the OpenSSH client, or pass/,
    );
    expect(failedOutcome.code).toBe(2);
    const { code, stderr } = await launch("n0,n1", ["missing.mjs"]).outcome;
    expect(stderr).toMatch(/\[n\d\] mosaic-run: entry missing\.mjs: no such file/);
    expect(stderr).toMatch(
      /mosaic-run: host n\d: its agent exited without a result \(the exit code of the agent is 2\) {3}exit code 2/,
    );
    expect(code).toBe(2);
  });
});

describe("the options for hosts", () => {
  const parseHostSettings = (argv: readonly string[], env: Env = {}): HostsSettings | undefined => {
    const sources = resolveSources(parseCommandLine(argv).options, env, testDir());
    return parseHosts(new OptionValues(sources), sources);
  };
  const listAgentOptions = (argv: readonly string[], env: Env = {}): (readonly string[])[] =>
    parseHostSettings(argv, env)?.sources.map((one) => formatAgentOptions(one)) ?? [];

  it("specify hosts, users, ranks and IPv6 addresses", () => {
    expect(parseHostSettings(["a.js"])).toBeUndefined();
    expect(parseHostSettings(["--hosts", "a, b:2,u@c.d:3,[fe80::1%eth0]:4,10.0.0.1"])?.hosts).toEqual([
      { target: "a", name: "a", slots: undefined },
      { target: "b", name: "b", slots: 2 },
      { target: "u@c.d", name: "c.d", slots: 3 },
      { target: "fe80::1%eth0", name: "fe80::1%eth0", slots: 4 },
      { target: "10.0.0.1", name: "10.0.0.1", slots: undefined },
    ]);
    writeFileSync(join(testDir(), "hosts"), "a\nb slots=2\r\n  # none\n c:3#x\nd  slots = 4");
    const { hosts = [] } = parseHostSettings(["--hostfile", join(testDir(), "hosts")]) ?? {};
    expect(hosts.map(({ name, slots }) => [name, slots])).toEqual([
      ["a", undefined],
      ["b", 2],
      ["c", 3],
      ["d", 4],
    ]);
    expect(parseHostSettings(["--hosts=a", "--ssh", "ssh -p 2222 -i 'my key' -o \"A b\""])?.ssh).toEqual([
      "ssh",
      "-p",
      "2222",
      "-i",
      "my key",
      "-o",
      "A b",
    ]);
  });

  it("are converted to options for each agent, with the first host as the endpoint and slots as ranks", () => {
    const firstOptions = ["--nnodes=2", "--rdzv-endpoint=a:29400"];
    expect(listAgentOptions(["--hosts", "a:2,b", "--threads", "3"])).toEqual([
      ["--nproc-per-node=2", "--threads=3", "--nnodes=2", "--node-rank=0", "--rdzv-endpoint=a:29400"],
      ["--threads=3", "--nnodes=2", "--node-rank=1", "--rdzv-endpoint=a:29400"],
    ]);
    expect(listAgentOptions(["--hosts", "a,b", "-N", "1:2", "--master-port=5", "--env", "A=1", "--json"])[0]).toEqual([
      ...["--nnodes=1:2", "--node-rank=0", "--rdzv-endpoint=a:5"],
    ]);
    expect(listAgentOptions(["--hosts=[::1],b", "--rdzv-endpoint=x:1", "--import=y", "--exec"])[1]).toEqual([
      "--exec",
      "--import=y",
      "--nnodes=2",
      "--node-rank=1",
      "--rdzv-endpoint=x:1",
    ]);
    expect(listAgentOptions(["--hosts=[fd::1],b"])[0]).toContain("--rdzv-endpoint=[fd::1]:29400");
    expect(listAgentOptions(["--hosts=localhost,b", "--master-addr=c"])[0]).toContain("--rdzv-endpoint=c:29400");
    // The numbers of SLURM's allocation are not used.
    const slurmEnv = { SLURM_JOB_ID: "1", SLURM_JOB_NUM_NODES: "4", SLURM_GPUS_ON_NODE: "8", MOSAIC_GRACE: "5s" };
    expect(listAgentOptions(["--hosts=a,b"], slurmEnv)[0]).toEqual([
      "--grace=5s",
      firstOptions[0],
      "--node-rank=0",
      firstOptions[1],
    ]);
    expect(listAgentOptions(["--hosts=b", "--rdzv-endpoint=x"], { PET_NODE_RANK: "3" })).toEqual([["--nnodes=1"]]);
  });

  it("recognize names and addresses of this machine", () => {
    const isLocalTarget = (target: string): boolean =>
      isLocal({ target, name: target.replace(/.*@/, ""), slots: undefined });
    const ownAddresses = Object.values(networkInterfaces())
      .flatMap((one) => one ?? [])
      .map(({ address }) => address);
    for (const name of ["localhost", "127.0.0.1", "::1", hostname(), ...ownAddresses])
      expect(isLocalTarget(name)).toBe(true);
    for (const name of ["n1", `me@${hostname()}`, "192.0.2.1", "2001:db8::1"]) expect(isLocalTarget(name)).toBe(false);
  });

  it.each([
    [["--hosts", ""], {}, /--hosts: expected a comma-separated list of \[user@\]host\[:slots\], received ""/],
    [["--hosts", "-oProxyCommand=x,b"], {}, /--hosts: expected a comma-separated list of \[user@\]host/],
    [["--hosts", "a;b"], {}, /--hosts: expected a comma-separated list of \[user@\]host/],
    [["--hosts", "a:0"], {}, /--hosts: expected a comma-separated list of \[user@\]host/],
    [["--hosts", "fe80::1"], {}, /--hosts: expected a comma-separated list of \[user@\]host/],
    [["--hosts", "[zz]"], {}, /--hosts: expected a comma-separated list of \[user@\]host/],
    [[], { MOSAIC_HOSTS: "a,b,a:2" }, /--hosts: expected unique hosts, with a:N for N ranks .*\(from MOSAIC_HOSTS\)/],
    [
      ["--hosts=a", "--hostfile=b"],
      {},
      /--hosts and --hostfile \(from --hostfile\) cannot be combined; pass one of them/,
    ],
    [["--hostfile=missing"], {}, /--hostfile missing: cannot be read: ENOENT/],
    [["--hosts=a,b", "-N", "3"], {}, /--nnodes: expected 2 or MIN:2 for 2 hosts, or no value, received "3"/],
    [["--hosts=localhost,b"], {}, /node 0 is localhost, which other hosts cannot reach; pass/],
    [
      ["--hosts=a,b", "--node-rank=0"],
      {},
      /--node-rank: expected no value, because --hosts numbers the nodes, received "0"/,
    ],
    [["--hosts=a,b", "--ssh", " "], {}, /--ssh: expected a command with its options/],
    [["--hosts=a,b", "--rdzv-endpoint=:x"], {}, /--rdzv-endpoint: expected host or host:port/],
  ] as [string[], Env, RegExp][])("reject %j %j", (argv, env, message) => {
    expect(() => parseHostSettings(argv, env)).toThrow(message);
  });

  it.each([
    ["a slots=0", /hosts:1: expected host \[slots=N\], received "a slots=0"/],
    ["ok\na b", /hosts:2: expected host/],
    ["a:2 slots=2", /hosts:1: expected host/],
    ["a max_slots=2", /hosts:1: expected host/],
    ["# none", /expected at least one host, received none/],
  ])("reject the host file %j", (text, message) => {
    writeFileSync(join(testDir(), "hosts"), text);
    expect(() => parseHostSettings(["--hostfile", join(testDir(), "hosts")])).toThrow(message);
  });

  it("include --agent-stdin, which is rejected without a header on standard input", async () => {
    const { code, stderr } = await mosaicRun(["--agent-stdin", "--exec", "true"]).outcome;
    expect(stderr).toContain("mosaic-run: --agent-stdin: standard input ended before the header");
    expect(code).toBe(2);
  });
});
