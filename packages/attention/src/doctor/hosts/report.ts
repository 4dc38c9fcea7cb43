// Reports the measurements of hosts as findings with remedies and as matrices.
import { type Finding, createNote, createOk, createProblem } from "../system.ts";
import type { Section } from "../diagnose.ts";
import type { HostInfo } from "./host-info.ts";
import type { HostsResult, MeasuredLink } from "./run.ts";
import type { SocketFailure, SocketLink } from "./sockets.ts";

/** Clock offsets, in milliseconds, from which a difference is a note, and from which it is a problem. */
const NOTE_CLOCK_OFFSET_MS = 50;
const PROBLEM_CLOCK_OFFSET_MS = 1000;

/** Returns the findings of `mosaic-doctor --hosts`, in the order in which they are reported. */
export function reportHosts(result: HostsResult): readonly Section[] {
  const sections: readonly (readonly [string, readonly Finding[]])[] = [
    ["hosts", result.hosts.map(describeHost)],
    ["versions", compareVersions(result.hosts)],
    ["names", checkNames(result)],
    ["clocks", checkClocks(result)],
    ["MTU", checkMtu(result.hosts)],
    ["sockets", checkSockets(result)],
    ["UCX", checkUcx(result)],
  ];
  return sections.map(([name, findings]) => ({ name, findings })).filter(({ findings }) => findings.length > 0);
}

function describeHost({ label, hostname, address, ranks, node, instructionSet, ucx, ...host }: HostInfo): Finding {
  const mtu = host.mtu === undefined ? "" : `, MTU ${host.mtu} on ${host.interface}`;
  const version = host.packages["@mosaic/attention"] ?? "unknown";
  const rankText = `${ranks} rank${ranks === 1 ? "" : "s"}`;
  const software = `Node ${node}, Mosaic ${version}, ${ucx === undefined ? "no UCX" : `UCX ${ucx}`}, ${instructionSet}`;
  return createOk(`${label}: ${hostname}, ${address}, ${rankText}, ${software}${mtu}`);
}

interface ComparedProperty {
  readonly description: string;
  readonly remedy: string;
  readonly createFinding: typeof createNote;
  valueOf(host: HostInfo): string | undefined;
}

function compareVersions(hosts: readonly HostInfo[]): readonly Finding[] {
  const names = [...new Set(hosts.flatMap(({ packages }) => Object.keys(packages)))];
  const packages = names.map(
    (name): ComparedProperty => ({
      ...{
        description: name,
        createFinding: createProblem,
        remedy: "install the same version on all hosts: npm ci with one package-lock.json",
      },
      valueOf: (host) => host.packages[name],
    }),
  );
  const comparedProperties: readonly ComparedProperty[] = [
    {
      ...{
        description: "Node's major version",
        createFinding: createProblem,
        remedy: "install the same major version of Node on all hosts",
      },
      valueOf: ({ node }) => node.split(".")[0],
    },
    ...packages,
    {
      ...{
        description: "UCX",
        createFinding: createNote,
        remedy: "install the same UCX on all hosts that have CPU ranks: apt-get install libucx0",
      },
      valueOf: ({ ucx }) => ucx,
    },
    {
      ...{ description: "CPU kernel instruction set", createFinding: createProblem },
      remedy:
        "set MOSAIC_ISA on all hosts to an instruction set that every host supports; init rejects a mismatch, because results would be rounded differently",
      valueOf: ({ instructionSet }) => instructionSet,
    },
  ];
  const differences = comparedProperties.flatMap(({ description, remedy, createFinding, valueOf }) => {
    const labelsByValue = groupBy(hosts, (host) => valueOf(host) ?? "none");
    return labelsByValue.size === 1
      ? []
      : [createFinding(`${description} mismatch: ${formatGroups(labelsByValue)}`, remedy)];
  });
  if (differences.length > 0 || hosts.length < 2) return differences;
  return [createOk("Node, Mosaic, UCX and instruction sets match")];
}

/** Groups the labels of hosts by value. */
function groupBy(hosts: readonly HostInfo[], valueOf: (host: HostInfo) => string): ReadonlyMap<string, string[]> {
  const labelsByValue = new Map<string, string[]>();
  for (const host of hosts) labelsByValue.set(valueOf(host), [...(labelsByValue.get(valueOf(host)) ?? []), host.label]);
  return labelsByValue;
}

const formatGroups = (labelsByValue: ReadonlyMap<string, readonly string[]>): string =>
  [...labelsByValue].map(([value, labels]) => `${value} on ${labels.join(", ")}`).join("; ");

/**
 * Checks that hostnames resolve. Only the endpoint must have a name, but names are preferable to addresses that change.
 */
function checkNames({ hosts, measurements }: HostsResult): readonly Finding[] {
  if (new Set(hosts.map(({ address }) => address)).size < 2) return [];
  const duplicateHostnames = [...groupBy(hosts, ({ hostname }) => hostname)].filter(([, labels]) => labels.length > 1);
  if (duplicateHostnames.length > 0) {
    return duplicateHostnames.map(([name, labels]) =>
      createNote(
        `${labels.join(", ")} have the same hostname, ${name}`,
        "give each host a unique hostname: hostnamectl hostname NAME",
      ),
    );
  }
  const findings = hosts.flatMap((host, destinationIndex) => {
    const failingLabels = measurements.flatMap(({ names }, sourceIndex) => {
      const resolution = names[destinationIndex]!;
      if (sourceIndex === destinationIndex || (typeof resolution !== "string" && resolution.includes(host.address)))
        return [];
      return [`${hosts[sourceIndex]!.label} (${typeof resolution === "string" ? resolution : resolution.join(", ")})`];
    });
    if (failingLabels.length === 0) return [];
    const text = `${host.hostname} does not resolve to ${host.address} of ${host.label} on ${failingLabels.join(", ")}`;
    return [
      createNote(
        text,
        `pass the endpoint as an IP address, or add "${host.address} ${host.hostname}" to DNS or /etc/hosts`,
      ),
    ];
  });
  return findings.length > 0 ? findings : [createOk("all hostnames resolve to the addresses of their hosts")];
}

/** Compares the clock of each host with that of the first host, where the first host could connect to it. */
function checkClocks({ hosts, measurements }: HostsResult): readonly Finding[] {
  const findings = hosts.slice(1).flatMap(({ label }, i) => {
    const link = toLink(measurements[0]!.sockets[i + 1]);
    if (!link) return [];
    const { wallClockOffsetMs, error } = link.clock;
    const minOffsetMs = Math.abs(wallClockOffsetMs) - error;
    const text = `clock offset of ${label} from ${hosts[0]!.label}: ${formatSignedNumber(wallClockOffsetMs)} ms ± ${error.toFixed(1)} ms`;
    const remedy = `synchronize the clocks: systemctl enable --now chronyd (or systemd-timesyncd) on ${label} and ${hosts[0]!.label}`;
    if (minOffsetMs < NOTE_CLOCK_OFFSET_MS) return [createOk(text)];
    return [minOffsetMs < PROBLEM_CLOCK_OFFSET_MS ? createNote(text, remedy) : createProblem(text, remedy)];
  });
  return findings;
}

const formatSignedNumber = (value: number): string => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;

function checkMtu(hosts: readonly HostInfo[]): readonly Finding[] {
  const hostsWithMtu = hosts.filter(({ mtu, interface: name }) => mtu !== undefined && name !== "lo");
  if (hostsWithMtu.length < 2) return [];
  const labelsByValue = groupBy(hostsWithMtu, ({ mtu }) => String(mtu));
  if (labelsByValue.size === 1) return [createOk(`${hostsWithMtu[0]!.mtu} on all hosts`)];
  const maxMtu = Math.max(...hostsWithMtu.map(({ mtu }) => mtu!));
  const lowMtuHosts = hostsWithMtu.filter(({ mtu }) => mtu! < maxMtu);
  const remedy = lowMtuHosts
    .map((host) => `on ${host.label}: ip link set dev ${host.interface} mtu ${maxMtu}`)
    .join("; ");
  return [
    createProblem(
      `mismatch: ${formatGroups(labelsByValue)}`,
      `${remedy}, if the switches support this MTU; otherwise set the smallest MTU on all hosts`,
    ),
  ];
}

type HostPair<T> = { readonly source: HostInfo; readonly destination: HostInfo; readonly value: T };

function listPairs<T>(
  { hosts }: HostsResult,
  getValue: (sourceIndex: number, destinationIndex: number) => T | null | undefined,
): HostPair<T>[] {
  return hosts.flatMap((source, i) =>
    hosts.flatMap((destination, j) => {
      const value = i === j ? null : getValue(i, j);
      return value === null || value === undefined ? [] : [{ source, destination, value }];
    }),
  );
}

function checkSockets(result: HostsResult): readonly Finding[] {
  const socketPairs = listPairs(
    result,
    (sourceIndex, destinationIndex) => result.measurements[sourceIndex]!.sockets[destinationIndex],
  );
  const failedPairs = socketPairs.filter((pair): pair is HostPair<SocketFailure> => "phase" in pair.value);
  const linkPairs = socketPairs.filter((pair): pair is HostPair<SocketLink> => !("phase" in pair.value));
  const matricesText = formatMatrices(result, (sourceIndex, destinationIndex) =>
    toLink(result.measurements[sourceIndex]!.sockets[destinationIndex]),
  );
  return [
    ...(linkPairs.length > 0 ? [createOk(matricesText)] : []),
    ...failedPairs.map(describeFailure),
    ...findSlowLinks(linkPairs),
  ];
}

function describeFailure({ source, destination, value: { phase, reason } }: HostPair<SocketFailure>): Finding {
  const pairText = `${source.label} → ${destination.label}`;
  if (phase === "transfer") {
    return createProblem(
      `${pairText}: small messages arrive, large ones do not (${reason}): packets of the MTU size are dropped along the path`,
      `lower the MTU of ${source.interface ?? "the interface"} on ${source.label} to the MTU of the network, or allow ICMP "fragmentation needed" messages`,
    );
  }
  const destinationEndpoint = `${destination.address}:${destination.port}`;
  if (phase === "ping")
    return createProblem(
      `${pairText}: connected to ${destinationEndpoint}, but no data arrives (${reason})`,
      "check for a proxy or firewall",
    );
  const cause =
    reason === "ECONNREFUSED"
      ? "connection refused by a firewall"
      : `no response (${reason}): a firewall drops packets, or there is no route to the host`;
  return createProblem(
    `${pairText}: blocked: TCP to ${destinationEndpoint}: ${cause}`,
    `on ${destination.label}, open TCP ports to the hosts of the job: either all ports, or one range such as 30000-30999, set with mosaic-doctor --ports, ucx({ ports }) and UCX_TCP_PORT_RANGE`,
  );
}

/** Returns findings for pairs that are much slower than the median of all pairs. */
function findSlowLinks(links: readonly HostPair<MeasuredLink>[]): readonly Finding[] {
  if (links.length < 3) return [];
  const bandwidth = median(links.map(({ value }) => value.bandwidth));
  const latency = median(links.map(({ value }) => value.latency));
  return links.flatMap(({ source, destination, value }) => {
    const pairText = `${source.label} → ${destination.label}`;
    const hasLowBandwidth = value.bandwidth < bandwidth / 2;
    const hasHighLatency = value.latency > 3 * latency && value.latency > 100e-6;
    return [
      ...(hasLowBandwidth
        ? [
            createNote(
              `${pairText}: ${formatMegabytesPerSecond(value.bandwidth)} MB/s, the median of all pairs is ${formatMegabytesPerSecond(bandwidth)} MB/s`,
              `run ethtool ${source.interface ?? "IFACE"} and ethtool ${destination.interface ?? "IFACE"} on the two hosts: compare speed, duplex and errors; check for other traffic on both interfaces`,
            ),
          ]
        : []),
      ...(hasHighLatency
        ? [
            createNote(
              `${pairText}: latency ${formatMicroseconds(value.latency)} µs, the median of all pairs is ${formatMicroseconds(latency)} µs`,
              "check the route (traceroute), power saving and load",
            ),
          ]
        : []),
    ];
  });
}

function checkUcx(result: HostsResult): readonly Finding[] {
  const { hosts, measurements } = result;
  const getUcxLink = (sourceIndex: number, destinationIndex: number): MeasuredLink | null => {
    const { ucx } = measurements[sourceIndex]!;
    return typeof ucx === "string" ? null : ucx[destinationIndex]!;
  };
  const labelsByReason = new Map<string, string[]>();
  for (const [i, { ucx }] of measurements.entries()) {
    if (typeof ucx === "string") labelsByReason.set(ucx, [...(labelsByReason.get(ucx) ?? []), hosts[i]!.label]);
  }
  const findings = [...labelsByReason].map(([reason, labels]) => {
    if (/^not measured/.test(reason)) return createNote(reason);
    if (/^not installed/.test(reason))
      return createNote(reason, "run apt-get install libucx0 on these hosts: CPU ranks require UCX between hosts");
    return createProblem(
      `${labels.join(", ")}: ${reason}`,
      "set UCX_NET_DEVICES to the interface between the hosts, or pass ucx({ network })",
    );
  });
  const links = listPairs(result, getUcxLink);
  if (links.length === 0) return findings;
  const slowerPairs = links.filter(({ source, destination, value }) => {
    const socketLink = toLink(measurements[hosts.indexOf(source)]!.sockets[hosts.indexOf(destination)]);
    return socketLink && value.bandwidth < 0.5 * socketLink.bandwidth;
  });
  const pairs = slowerPairs.map(({ source, destination }) => `${source.label} → ${destination.label}`).join(", ");
  const remedy = "check UCX_TLS and UCX_NET_DEVICES: UCX_LOG_LEVEL=info prints what UCX selects";
  const slowerPairFindings =
    slowerPairs.length > 0 ? [createNote(`less than half the socket bandwidth: ${pairs}`, remedy)] : [];
  return [createOk(formatMatrices(result, getUcxLink)), ...findings, ...slowerPairFindings, ...findSlowLinks(links)];
}

function toLink(value: SocketLink | SocketFailure | null | undefined): SocketLink | null {
  return value && !("phase" in value) ? value : null;
}

/** Formats matrices of bandwidth and latency from each host (rows) to each other host (columns). */
function formatMatrices(
  { hosts }: HostsResult,
  getLink: (sourceIndex: number, destinationIndex: number) => MeasuredLink | null,
): string {
  const formatMatrix = (title: string, format: (link: MeasuredLink) => string): string[] => {
    const rows = [
      [title, ...hosts.map(({ label }) => `to ${label}`)],
      ...hosts.map(({ label }, sourceIndex) => [
        `from ${label}`,
        ...hosts.map((_, destinationIndex) => {
          const link = sourceIndex === destinationIndex ? null : getLink(sourceIndex, destinationIndex);
          return sourceIndex === destinationIndex ? "–" : link === null ? "✗" : format(link);
        }),
      ]),
    ];
    const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
    return rows.map((row) =>
      row.map((cell, i) => (i === 0 ? cell.padEnd(widths[0]!) : cell.padStart(widths[i]!))).join("  "),
    );
  };
  return [
    ...formatMatrix("bandwidth, MB/s", ({ bandwidth }) => formatMegabytesPerSecond(bandwidth)),
    ...formatMatrix("latency, µs", ({ latency }) => formatMicroseconds(latency)),
  ].join("\n");
}

const formatMegabytesPerSecond = (bytesPerSecond: number): string =>
  String(Number((bytesPerSecond / 1e6).toPrecision(3)));
const formatMicroseconds = (seconds: number): string => (seconds * 1e6).toFixed(0);

export function median(numbers: readonly number[]): number {
  const sorted = numbers.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}
