import { listMessages } from "../count.ts";
import type { AttentionRecord } from "../record.ts";
import type { LinkData } from "./data.ts";

/** More pairs of ranks than these are counted by their nodes. */
const MAX_RANK_PAIRS = 20_000;

/** Bytes that each rank of a record sends to each other one, forward and backward. */
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
  const byPair = new Map<number, number>();
  for (const recordedRank of record.ranks) {
    for (const { peer, sent, bytes } of listMessages(record, recordedRank)) {
      const { rank } = recordedRank.tape;
      if (sent && peer !== rank) byPair.set(rank * size + peer, (byPair.get(rank * size + peer) ?? 0) + bytes);
    }
  }
  if (byPair.size <= maxPairs) return { nodes, between: "ranks", links: listLinks(byPair, size) };
  const byNodes = new Map<number, number>();
  for (const [pair, bytes] of byPair) {
    const nodePair = nodes[Math.floor(pair / size)]! * size + nodes[pair % size]!;
    byNodes.set(nodePair, (byNodes.get(nodePair) ?? 0) + bytes);
  }
  return { nodes, between: "nodes", links: listLinks(byNodes, size) };
}

function listLinks(totals: ReadonlyMap<number, number>, size: number): LinkData["links"] {
  return [...totals].map(([pair, bytes]) => ({ from: Math.floor(pair / size), to: pair % size, bytes }));
}
