// mosaic-doctor --hosts without several hosts: reports of given measurements, and runs on this host.
import { parseProfile, profiles } from "@mosaic/planner";
import { describe, expect, it } from "vitest";
import { formatReport } from "../src/doctor/diagnose.ts";
import type { HostInfo } from "../src/doctor/hosts/host-info.ts";
import { listRoundRobinPairs } from "../src/doctor/hosts/round-robin.ts";
import { createProfile } from "../src/doctor/hosts/profile.ts";
import { reportHosts } from "../src/doctor/hosts/report.ts";
import type { HostMeasurement, HostsResult } from "../src/doctor/hosts/run.ts";
import { runDoctor, shiftClock } from "./doctor/nodes.ts";

const exampleLink = { latency: 50e-6, bandwidth: 1e9, clock: { wallClockOffsetMs: 0.2, error: 1.1 } };

interface ResultOverrides {
  readonly host?: Partial<HostInfo>;
  readonly measured?: Partial<HostMeasurement>;
}

/** Creates the result of three healthy hosts, with overrides for n1. */
function createResult({ host, measured }: ResultOverrides = {}): HostsResult {
  const hosts = [0, 1, 2].map(
    (index): HostInfo => ({
      ...{ label: `n${index}`, hostname: `host-${index}`, address: `10.0.0.${index}`, port: 4000, nonce: "", ranks: 4 },
      ...{ node: "22.18.0", packages: { "@mosaic/core": "0.2.0" }, ucx: "1.13.1", instructionSet: "avx2" },
      ...{ interface: "eth0", mtu: 1500 },
      ...(index === 1 && host),
    }),
  );
  return {
    hosts,
    measurements: hosts.map((_, index) => ({
      names: hosts.map(({ address }) => [address]),
      sockets: hosts.map((__, peer) => (peer === index ? null : exampleLink)),
      ucx: hosts.map((__, peer) => (peer === index ? null : { latency: 20e-6, bandwidth: 2e9 })),
      ...(index === 1 && measured),
    })),
  };
}

const createReport = (overrides?: ResultOverrides): string =>
  formatReport(reportHosts(createResult(overrides)), "the hosts fit");
const slowLink = { ...exampleLink, bandwidth: 1e8 };
const highLatencyLink = { ...exampleLink, latency: 1e-3 };
const createOffsetLink = (wallClockOffsetMs: number) => ({ ...exampleLink, clock: { wallClockOffsetMs, error: 1.1 } });

describe("report on the hosts of a job", () => {
  it("shows compatible hosts on one line each, and matrices for sockets and UCX", () => {
    expect(
      createReport(),
    ).toBe(`✓ hosts     n0: host-0, 10.0.0.0, 4 ranks, Node 22.18.0, Mosaic unknown, UCX 1.13.1, avx2, MTU 1500 on eth0
✓           n1: host-1, 10.0.0.1, 4 ranks, Node 22.18.0, Mosaic unknown, UCX 1.13.1, avx2, MTU 1500 on eth0
✓           n2: host-2, 10.0.0.2, 4 ranks, Node 22.18.0, Mosaic unknown, UCX 1.13.1, avx2, MTU 1500 on eth0
✓ versions  Node, Mosaic, UCX and instruction sets match
✓ names     all hostnames resolve to the addresses of their hosts
✓ clocks    clock offset of n1 from n0: +0.2 ms ± 1.1 ms
✓           clock offset of n2 from n0: +0.2 ms ± 1.1 ms
✓ MTU       1500 on all hosts
✓ sockets   bandwidth, MB/s  to n0  to n1  to n2
            from n0              –   1000   1000
            from n1           1000      –   1000
            from n2           1000   1000      –
            latency, µs  to n0  to n1  to n2
            from n0          –     50     50
            from n1         50      –     50
            from n2         50     50      –
✓ UCX       bandwidth, MB/s  to n0  to n1  to n2
            from n0              –   2000   2000
            from n1           2000      –   2000
            from n2           2000   2000      –
            latency, µs  to n0  to n1  to n2
            from n0          –     20     20
            from n1         20      –     20
            from n2         20     20      –

the hosts fit`);
  });

  it.each<readonly [string, ResultOverrides, RegExp]>([
    [
      "another Node",
      { host: { node: "20.19.0" } },
      /✗ versions +Node's major version mismatch: 22 on n0, n2; 20 on n1\n +→ install/,
    ],
    [
      "another package",
      { host: { packages: { "@mosaic/core": "0.1.0" } } },
      /✗ versions +@mosaic\/core mismatch: 0\.2\.0 on n0, n2; 0\.1/,
    ],
    [
      "another UCX",
      { host: { ucx: "1.17.0" } },
      /· versions +UCX mismatch: 1\.13\.1 on n0, n2; 1\.17\.0 on n1\n +→ install/,
    ],
    [
      "no UCX",
      { host: { ucx: undefined }, measured: { ucx: "not installed on n1" } },
      /· +not installed on n1\n +→ run apt-get/,
    ],
    [
      "another instruction set",
      { host: { instructionSet: "avx512" } },
      /✗ .*avx2 on n0, n2; avx512 on n1\n +→ .*MOSAIC_ISA/,
    ],
    [
      "the name of another",
      { host: { hostname: "host-0" } },
      /· names +n0, n1 have the same hostname, host-0\n +→ .*hostnamectl/,
    ],
    [
      "a resolver without the others",
      { measured: { names: ["ENOTFOUND", ["10.0.0.1"], ["10.0.0.2"]] } },
      /· names +host-0 does not resolve to 10\.0\.0\.0 of n0 on n1 \(ENOTFOUND\)\n +→ .*DNS/,
    ],
    [
      "another MTU",
      { host: { mtu: 9000 } },
      /✗ MTU +mismatch: 1500 on n0, n2; 9000 on n1\n +→ on n0: ip link set dev eth0 mtu 9000; on n2/,
    ],
    [
      "a port that is rejected",
      { measured: { sockets: [{ phase: "connect", reason: "ECONNREFUSED" }, null, exampleLink] } },
      /✗ +n1 → n0: blocked: TCP to 10\.0\.0\.0:4000: connection refused by a firewall\n +→ on n0, open/,
    ],
    [
      "a connection that carries nothing",
      { measured: { sockets: [{ phase: "ping", reason: "timed out after 5 s" }, null, exampleLink] } },
      /✗ +n1 → n0: connected to 10\.0\.0\.0:4000, but no data arrives/,
    ],
    [
      "packets that are lost if large",
      { measured: { sockets: [{ phase: "transfer", reason: "timed out after 5 s" }, null, exampleLink] } },
      /✗ +n1 → n0: small messages arrive.*\n +→ lower the MTU of eth0 on n1/,
    ],
    [
      "a slow way out",
      { measured: { sockets: [slowLink, null, slowLink] } },
      /· +n1 → n0: 100 MB\/s, the median of all pairs is 1000 MB\/s\n +→ run ethtool/,
    ],
    [
      "a long way out",
      { measured: { sockets: [highLatencyLink, null, exampleLink] } },
      /· +n1 → n0: latency 1000 µs, the median of all pairs is 50 µs\n/,
    ],
    ["a UCX that fails", { measured: { ucx: "no network" } }, /✗ +n1: no network\n +→ set UCX_NET_DEVICES/],
    [
      "a slow UCX",
      { measured: { ucx: [{ latency: 1e-5, bandwidth: 1e8 }, null, { latency: 1e-5, bandwidth: 2e9 }] } },
      /· +less than half the socket bandwidth: n1 → n0\n/,
    ],
  ])("reports a host with %s", (_, changes, expected) => {
    expect(createReport(changes)).toMatch(expected);
  });

  it.each([
    [-60, /· clocks +clock offset of n1 from n0: −60\.0 ms ± 1\.1 ms\n +→ synchronize the clocks/],
    [2500, /✗ clocks +clock offset of n1 from n0: \+2500\.0 ms/],
    [50.9, /✓ clocks +clock offset of n1 from n0: \+50\.9 ms/],
  ])("reports a clock offset of %d ms", (milliseconds, expected) => {
    const result = createResult();
    const [firstMeasurement, ...otherMeasurements] = result.measurements as readonly [
      HostMeasurement,
      ...HostMeasurement[],
    ];
    const measurements = [
      { ...firstMeasurement, sockets: [null, createOffsetLink(milliseconds), exampleLink] },
      ...otherMeasurements,
    ];
    expect(formatReport(reportHosts({ ...result, measurements }))).toMatch(expected);
  });

  it.each([1, 2, 3, 4, 5, 8])("schedules rounds of disjoint pairs, with each pair once: %d", (count) => {
    const peerPairs = listRoundRobinPairs(count).flatMap((peers) => {
      for (const [host, peer] of peers.entries()) if (peer >= 0) expect(peers[peer]).toBe(host);
      return peers.flatMap((peer, host) => (host < peer ? [`${host} ${peer}`] : []));
    });
    expect(new Set(peerPairs).size).toBe(peerPairs.length);
    expect(peerPairs).toHaveLength((count * (count - 1)) / 2);
  });

  it("creates a profile of the median link: of UCX if all hosts have it, otherwise of sockets", () => {
    const createMeasuredProfile = (overrides?: ResultOverrides) =>
      parseProfile(createProfile(profiles["cpu-local"], createResult(overrides)));
    expect(createMeasuredProfile()).toMatchObject({
      ...{ name: "measured-3x4", ranksPerNode: 4 },
      links: { "inter-node": { latency: 20e-6, bandwidth: 2e9, sharedBy: 4, duplex: true } },
    });
    const { measurements, hosts } = createResult();
    const resultWithoutUcx = measurements.map((each) => ({ ...each, ucx: "not installed on n1" }));
    expect(
      createProfile(profiles["cpu-local"], { hosts, measurements: resultWithoutUcx }).links["inter-node"].bandwidth,
    ).toBe(1e9);
  });
});

describe("mosaic-doctor --hosts", () => {
  it("measures between the ranks of a single host", async () => {
    const [{ code, stdout, stderr }] = (await runDoctor({ nodes: 1, ranks: 2 })) as [
      { code: number; stdout: string; stderr: string },
    ];
    expect(stderr).toBe("");
    expect(stdout).toMatch(/✓ hosts +rank 0: .*, 2 ranks, Node .*\n✓ +rank 1: /);
    expect(stdout).toMatch(/from rank 0 +– +[\d.]+\n +from rank 1 +[\d.]+ +–\n/);
    expect(code).toBe(0);
  }, 60_000);

  it("measures between two nodes with a launcher each, and reports a clock offset", async () => {
    const endpoint = `127.0.0.9:${24_000 + (process.pid % 4000)}`;
    const env = (node: number): Readonly<Record<string, string>> =>
      node === 1 ? { NODE_OPTIONS: `--import=${shiftClock}` } : {};
    const doctorRuns = await runDoctor({ nodes: 2, ranks: 2, endpoint, env });
    expect(doctorRuns[0]!.stdout).toMatch(/✗ clocks +clock offset of n1 from n0: \+\d{4}\.\d ms ± /);
    expect(doctorRuns[0]!.stdout).toMatch(/from n0 +– +[\d.]+\n +from n1 +[\d.]+ +–\n/);
    expect(doctorRuns.map(({ code }) => code)).toEqual([1, 1]);
  }, 60_000);

  it("rejects a port that is not a range", async () => {
    const [ended] = await runDoctor({ nodes: 1, args: ["--ports", "80"] });
    expect(ended!.code).toBe(2);
    expect(ended!.stderr).toMatch(/--ports: expected a range from 1 to 65535, such as 30000-30999, received "80"/);
  }, 30_000);
});
