import { listMessages } from "../count.ts";
import type { AttentionRecord } from "../record.ts";
import type { LinkData } from "./data.ts";

/** Maximum number of pairs of ranks. More are counted by their nodes. */
const MAX_RANK_PAIRS = 20_000;

/** Returns the bytes that each rank of a record sends to each other rank, forward and backward. */
export function encodeLinks(
  record: AttentionRecord,
  ranksPerNode: number | undefined,
  maxPairs: number = MAX_RANK_PAIRS,
): LinkData {
  const { mesh, hosts } = record.options;
  const size = Object.values(mesh).reduce((product, length) => product * length, 1);
  const nodes = Array.from({ length: size }, (_, rank) =>
    ranksPerNode === undefined ? (hosts?.[rank] ?? 0) : Math.floor(rank / ranksPerNode),
  );
  const bytesByPair = new Map<number, number>();
  for (const recordedRank of record.ranks) {
    for (const { peer, isSent, bytes } of listMessages(record, recordedRank, nodes)) {
      const { rank } = recordedRank.tape;
      if (isSent && peer !== rank)
        bytesByPair.set(rank * size + peer, (bytesByPair.get(rank * size + peer) ?? 0) + bytes);
    }
  }
  if (bytesByPair.size <= maxPairs) return { nodes, between: "ranks", links: listLinks(bytesByPair, size) };
  // Numbers of hosts may exceed the number of ranks.
  const nodeStride = nodes.reduce((max, node) => Math.max(max, node), 0) + 1;
  const bytesByNodePair = new Map<number, number>();
  for (const [pair, bytes] of bytesByPair) {
    const nodePair = nodes[Math.floor(pair / size)]! * nodeStride + nodes[pair % size]!;
    bytesByNodePair.set(nodePair, (bytesByNodePair.get(nodePair) ?? 0) + bytes);
  }
  return { nodes, between: "nodes", links: listLinks(bytesByNodePair, nodeStride) };
}

function listLinks(totals: ReadonlyMap<number, number>, stride: number): LinkData["links"] {
  return [...totals].map(([pair, bytes]) => ({ from: Math.floor(pair / stride), to: pair % stride, bytes }));
}
