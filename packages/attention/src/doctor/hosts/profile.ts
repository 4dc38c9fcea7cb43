// Converts the measurements of hosts to a profile of the planner.
import { type Link, type Profile, profiles } from "@mosaic/planner";
import type { HostsResult, MeasuredLink } from "./run.ts";
import { median } from "./report.ts";

/**
 * Returns a calibrated profile of one host with the measured link between hosts: UCX where it was measured, else
 * sockets. The link is the median of all pairs. Ranks of a host share the port. On a single host, the link between
 * hosts is that of the profile "cpu-local".
 */
export function createProfile(calibratedProfile: Profile, { hosts, measurements }: HostsResult): Profile {
  const isMultiNode = hosts[0]!.label.startsWith("n");
  const ranksPerNode = isMultiNode ? hosts[0]!.ranks : hosts.length;
  const name = isMultiNode ? `measured-${hosts.length}x${ranksPerNode}` : `measured-${ranksPerNode}`;
  const measuredLinks = measurements.flatMap(({ ucx, sockets }) => {
    const links: readonly unknown[] = typeof ucx === "string" ? sockets : ucx;
    return links.filter((link): link is MeasuredLink => link !== null && "bandwidth" in (link as object));
  });
  const linkBetweenHosts: Link | undefined =
    isMultiNode && measuredLinks.length > 0
      ? {
          latency: median(measuredLinks.map(({ latency }) => latency)),
          bandwidth: median(measuredLinks.map(({ bandwidth }) => bandwidth)),
          sharedBy: ranksPerNode,
          duplex: true,
        }
      : undefined;
  const links = {
    ...calibratedProfile.links,
    "inter-node": linkBetweenHosts ?? profiles["cpu-local"].links["inter-node"],
  };
  return { ...calibratedProfile, name, ranksPerNode, links };
}
