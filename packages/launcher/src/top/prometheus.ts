import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { RendezvousError } from "../errors.ts";
import { findPortOwner } from "../report/port-owner.ts";
import type { RankSample, WorldSample } from "./sample.ts";

interface Metric {
  readonly name: string;
  readonly help: string;
  value(rank: RankSample): number | null;
}

const toSeconds = (ms: number | null): number | null => (ms === null ? null : ms / 1000);

const METRICS: readonly Metric[] = [
  { name: "steps", help: "Number of steps marked by the rank.", value: ({ steps }) => steps },
  { name: "step_seconds", help: "Mean step time in the last interval, in seconds.", value: (r) => toSeconds(r.stepMs) },
  {
    name: "since_step_seconds",
    help: "Time since the end of the last step, in seconds.",
    value: (r) => toSeconds(r.sinceStepMs),
  },
  {
    name: "waiting_ratio",
    help: "Fraction of time that the device waits for collectives.",
    value: (r) => r.waitingShare,
  },
  {
    name: "sent_bytes_per_second",
    help: "Collective payload sent, in bytes per second.",
    value: (r) => r.sentBytesPerSecond,
  },
  {
    name: "received_bytes_per_second",
    help: "Collective payload received, in bytes per second.",
    value: (r) => r.receivedBytesPerSecond,
  },
  { name: "resident_bytes", help: "Resident memory of the process, in bytes.", value: (r) => r.residentBytes },
  { name: "device_bytes", help: "Device memory held by the allocator, in bytes.", value: (r) => r.deviceBytes },
  { name: "device_peak_bytes", help: "Peak device memory allocated, in bytes.", value: (r) => r.devicePeakBytes },
  {
    name: "up",
    help: "1 if the rank is reachable, 0 otherwise.",
    value: ({ activity }) => Number(!ENDED_ACTIVITIES.has(activity)),
  },
];

const ENDED_ACTIVITIES: ReadonlySet<RankSample["activity"]> = new Set(["exited", "failed", "unknown"]);

/** Formats the samples for Prometheus, in text format 0.0.4, with a gauge for each rank and metric. */
export function formatPrometheusMetrics(job: string, worlds: readonly WorldSample[]): string {
  const quoteLabel = (text: string): string => JSON.stringify(text);
  const formatLabels = ({ world, attempt }: WorldSample): string =>
    `job_id=${quoteLabel(job)},world=${quoteLabel(world)},attempt="${attempt}"`;
  const rankLines = METRICS.flatMap(({ name, help, value }) => {
    const lines = worlds.flatMap((world) =>
      world.ranks.flatMap((rank) => {
        const metricValue = value(rank);
        if (metricValue === null) return [];
        return [
          `mosaic_rank_${name}{${formatLabels(world)},rank="${rank.rank}",host=${quoteLabel(rank.host)}} ${metricValue}`,
        ];
      }),
    );
    return [`# HELP mosaic_rank_${name} ${help}`, `# TYPE mosaic_rank_${name} gauge`, ...lines];
  });
  const slowestRankLines = worlds.map(
    (world) => `mosaic_slowest_rank{${formatLabels(world)}} ${world.slowestRank ?? -1}`,
  );
  const slowestRankHelp = [
    "# HELP mosaic_slowest_rank Rank that the other ranks wait for; -1 if there is none.",
    "# TYPE mosaic_slowest_rank gauge",
  ];
  return `${[...rankLines, ...slowestRankHelp, ...slowestRankLines].join("\n")}\n`;
}

/**
 * Serves a text at http://127.0.0.1:PORT/metrics. Resolves to the port. Rejects with RendezvousError if the port cannot
 * be bound.
 */
export async function servePrometheus(port: number, formatMetrics: () => string): Promise<number> {
  const server = createServer(({ method, url }, response) => {
    const isMetricsRequest = method === "GET" && url === "/metrics";
    response.writeHead(isMetricsRequest ? 200 : 404, { "content-type": "text/plain; version=0.0.4; charset=utf-8" });
    response.end(isMetricsRequest ? formatMetrics() : "");
  });
  server.listen(port, "127.0.0.1");
  try {
    await once(server, "listening");
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const reason =
      code === "EADDRINUSE" ? `the port is in use by ${findPortOwner(port) ?? "another process"}` : message;
    throw new RendezvousError(`--prometheus ${port}: ${reason}; choose a different port`);
  }
  return (server.address() as AddressInfo).port;
}
