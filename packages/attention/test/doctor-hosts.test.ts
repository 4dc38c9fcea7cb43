// mosaic-doctor --hosts between hosts simulated by network namespaces. `npm run test:hosts` creates n0 to n2 on a
// bridge.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Profile } from "@mosaic/planner";
import { expect, test } from "vitest";
import { type DoctorJob, type ProcessResult, runPlan, runDoctor, shiftClock } from "./doctor/nodes.ts";

const runDoctorOnHosts = async (nodes: number, job: Partial<DoctorJob> = {}): Promise<ProcessResult> => {
  const command = (node: number): readonly string[] => ["ip", "netns", "exec", `n${node}`];
  const [firstRun] = await runDoctor({ nodes, endpoint: "10.77.0.10:29400", command, ...job });
  return firstRun!;
};
const runIp = (...args: readonly string[]): string => execFileSync("ip", args, { encoding: "utf8" });
const runOnHost = (host: number, ...args: readonly string[]): string => runIp("netns", "exec", `n${host}`, ...args);

/** Returns the bytes that the bridge has received from a host. */
const readReceivedBytes = (host: number): number =>
  (JSON.parse(runIp("-json", "-stats", "link", "show", `v${host}`)) as [{ stats64: { rx: { bytes: number } } }])[0]
    .stats64.rx.bytes;

test("reports matrices of all pairs and exit code 0 for three compatible hosts", async () => {
  const bytesBefore = [0, 1, 2].map(readReceivedBytes);
  const { code, stdout, stderr } = await runDoctorOnHosts(3);
  expect(stderr).toBe("");
  expect(stdout).toMatch(/✓ hosts +n0: .*, 10\.77\.0\.10, 1 rank, Node .*MTU 1500 of eth0\n✓ +n1: .*10\.77\.0\.11/);
  expect(stdout).toMatch(/✓ clocks +clock offset of n1 from n0: [+−]\d+\.\d ms ± \d\.\d ms\n✓ +clock offset of n2/);
  expect(stdout).toMatch(/✓ MTU +1500 on all hosts/);
  expect(stdout).toMatch(
    /✓ sockets +bandwidth, MB\/s +to n0 +to n1 +to n2\n +from n0 +– +[\d.]+ +[\d.]+\n +from n1 +[\d.]+ +– +[\d.]+\n +from n2 +[\d.]+ +[\d.]+ +–\n +latency/,
  );
  expect(stdout).toMatch(/the hosts of this job are compatible|· UCX +not installed/);
  expect(code).toBe(0);
  for (const host of [0, 1, 2]) expect(readReceivedBytes(host) - bytesBefore[host]!).toBeGreaterThan(2 * 2 ** 20);
}, 60_000);

test("--json writes a profile of the measured links, which mosaic-plan accepts", async () => {
  const { code, stdout, stderr } = await runDoctorOnHosts(2, { ranks: 2, args: ["--json"] });
  expect(stderr).toContain("from n0");
  expect(code).toBe(0);
  const { links, ranksPerNode, name } = JSON.parse(stdout) as Profile;
  expect([name, ranksPerNode, links["inter-node"].sharedBy]).toEqual(["measured-2x2", 2, 2]);
  expect(links["inter-node"].latency).toBeLessThan(5e-3);
  expect(links["inter-node"].bandwidth).toBeGreaterThan(1e7);
  const directory = mkdtempSync(join(tmpdir(), "mosaic-doctor-"));
  try {
    writeFileSync(join(directory, "measured.json"), stdout);
    const plan = await runPlan(join(directory, "measured.json"), 2);
    expect(plan.stderr).not.toMatch(/profile/);
    expect((JSON.parse(plan.stdout) as { profile: Profile }).profile.name).toBe("measured-2x2");
  } finally {
    rmSync(directory, { recursive: true });
  }
}, 120_000);

test("reports a host whose ports are blocked", async () => {
  // Replies of n1 from these ports are dropped.
  const blackholeRule = ["ipproto", "tcp", "sport", "30000-30015", "blackhole"];
  runIp("-n", "n1", "rule", "add", ...blackholeRule);
  try {
    const { code, stdout } = await runDoctorOnHosts(2, { args: ["--ports", "30000-30015"] });
    expect(stdout).toMatch(
      /✗ +n0 → n1: blocked: TCP to 10\.77\.0\.11:30000: no response \(timed out after 3 s\): a firewall drops packets, or there is no route to the host\n +→ on n1, open TCP ports/,
    );
    expect(stdout).toMatch(/from n0 +– +✗\n +from n1 +[\d.]+ +–/);
    expect(stdout).toMatch(/· UCX +not measured because some hosts cannot reach each other/);
    expect(code).toBe(1);
  } finally {
    runIp("-n", "n1", "rule", "del", ...blackholeRule);
  }
}, 60_000);

test("reports a host with a different MTU", async () => {
  runIp("-n", "n1", "link", "set", "eth0", "mtu", "1400");
  try {
    const { code, stdout } = await runDoctorOnHosts(2);
    expect(stdout).toMatch(/✗ MTU +mismatch: 1500 on n0; 1400 on n1\n +→ on n1: ip link set dev eth0 mtu 1500/);
    expect(code).toBe(1);
  } finally {
    runIp("-n", "n1", "link", "set", "eth0", "mtu", "1500");
  }
}, 60_000);

test("reports an MTU that the network between hosts does not support", async () => {
  // Disable segmentation offload, with which oversized packets would pass the bridge unsegmented.
  for (const host of ["n0", "n1"]) runIp("-n", host, "link", "set", "eth0", "mtu", "9000", "gso_max_segs", "1");
  try {
    const { code, stdout } = await runDoctorOnHosts(2);
    expect(stdout).toMatch(/✓ MTU +9000 on all hosts/);
    expect(stdout).toMatch(
      /✗ .*n0 → n1: small messages arrive, large ones do not \(.*\): packets of the MTU size are dropped/,
    );
    expect(code).toBe(1);
  } finally {
    for (const host of ["n0", "n1"]) runIp("-n", host, "link", "set", "eth0", "mtu", "1500", "gso_max_segs", "65535");
  }
}, 60_000);

test("reports a host with a clock offset", async () => {
  const env = (node: number): Readonly<Record<string, string>> =>
    node === 1 ? { NODE_OPTIONS: `--import=${shiftClock}` } : {};
  const { code, stdout } = await runDoctorOnHosts(2, { env });
  expect(stdout).toMatch(
    /✗ clocks +clock offset of n1 from n0: \+\d{4}\.\d ms ± \d\.\d ms\n +→ synchronize the clocks/,
  );
  const offset = Number(/n1 from n0: \+([\d.]+) ms/.exec(stdout)?.[1]);
  const error = Number(/± ([\d.]+) ms/.exec(stdout)?.[1]);
  expect(Math.abs(offset - 5000)).toBeLessThanOrEqual(error + 0.1);
  expect(code).toBe(1);
}, 60_000);

test("reports a host on a slow link", async () => {
  runOnHost(
    2,
    "tc",
    "qdisc",
    "add",
    "dev",
    "eth0",
    "root",
    "tbf",
    "rate",
    "100mbit",
    "burst",
    "32k",
    "latency",
    "50ms",
  );
  try {
    const { stdout } = await runDoctorOnHosts(3);
    expect(stdout).toMatch(
      /· +n2 → n[01]: [\d.]+ MB\/s, the median of all pairs is [\d.]+ MB\/s\n +→ run ethtool eth0/,
    );
    expect(stdout).not.toMatch(/· +n[01] → n[01]: /);
  } finally {
    runOnHost(2, "tc", "qdisc", "del", "dev", "eth0", "root");
  }
}, 60_000);
