import { type FrameOf, PROTOCOL_VERSION } from "../agent/frames.ts";
import type { LaunchPlan, NodesPlan } from "../launch-plan.ts";
import { launcherVersion } from "../version.ts";

export type Registration = FrameOf<"register">;

/** Returns the registration of this node. Node 0 compares those of other nodes with its own. */
export function createRegistration(plan: LaunchPlan, nodes: NodesPlan): Registration {
  return {
    kind: "register",
    ...{ version: PROTOCOL_VERSION, launcher: launcherVersion(), runtime: process.versions.node },
    ...{ job: plan.rdzvId, nodeRank: nodes.nodeRank, minNodes: nodes.min, maxNodes: nodes.max, nproc: plan.nproc },
    ...{ host: plan.node, command: nodes.commandText, digest: nodes.digest },
  };
}

/** Returns the name of a node in messages. */
export const nodeName = ({ nodeRank, host }: Pick<Registration, "nodeRank" | "host">): string =>
  `node ${nodeRank} (${host})`;

/**
 * Returns the reason why two launchers cannot be nodes of one job; undefined if they can. `isOtherJob` marks the
 * launcher of a different job, which does not fail this job's rendezvous.
 */
export function findMismatch(
  root: Registration,
  other: Registration,
): { readonly message: string; readonly isOtherJob: boolean } | undefined {
  const [rootName, otherName] = [nodeName(root), nodeName(other)];
  const reject = (message: string, isOtherJob = false): ReturnType<typeof findMismatch> => ({ message, isOtherJob });
  if (other.job !== root.job)
    return reject(
      `--rdzv-id mismatch: ${otherName} uses ${other.job}, the job at this endpoint uses ${root.job}; pass the same ID, or use a different endpoint`,
      true,
    );
  if (other.version !== root.version || other.launcher !== root.launcher)
    return reject(
      `launcher version mismatch: ${otherName} uses ${other.launcher}, ${rootName} uses ${root.launcher}; install the same version on all nodes`,
    );
  if (majorVersion(other.runtime) !== majorVersion(root.runtime))
    return reject(
      `Node.js version mismatch: ${otherName} uses ${other.runtime}, ${rootName} uses ${root.runtime}; use the same major version on all nodes`,
    );
  if (other.minNodes !== root.minNodes || other.maxNodes !== root.maxNodes)
    return reject(
      `--nnodes mismatch: ${otherName} uses ${formatNodeRange(other)}, ${rootName} uses ${formatNodeRange(root)}; pass the same --nnodes on all nodes`,
    );
  if (other.digest !== root.digest)
    return reject(
      `command mismatch: ${otherName} runs ${JSON.stringify(other.command)}, ${rootName} runs ${JSON.stringify(root.command)}; use the same script and arguments on all nodes`,
    );
  if (other.nodeRank >= root.maxNodes)
    return reject(
      `--node-rank: expected an integer from 0 to ${root.maxNodes - 1}, received ${other.nodeRank} from ${otherName}`,
    );
  return undefined;
}

const majorVersion = (version: string): string | undefined => version.split(".")[0];

const formatNodeRange = ({ minNodes, maxNodes }: Registration): string =>
  minNodes === maxNodes ? String(maxNodes) : `${minNodes}:${maxNodes}`;

/** Formats the missing nodes, for example `2/3 nodes; missing n2`, with at most eight names. */
export function waitingMessage(registeredNodes: ReadonlySet<number>, max: number): string {
  const missingNodes = Array.from({ length: max }, (_, rank) => rank).filter((rank) => !registeredNodes.has(rank));
  const names = missingNodes.slice(0, 8).map((rank) => `n${rank}`);
  const omittedText = missingNodes.length > names.length ? ` and ${missingNodes.length - names.length} more` : "";
  return `${registeredNodes.size}/${max} nodes; missing ${names.join(", ")}${omittedText}`;
}
