import { recordRepresentatives } from "../symmetry/record-representatives.ts";
import { meshSize } from "../symmetry/translations.ts";
import { type TrafficTotals, listMessages } from "../count.ts";
import {
  type AttentionRecord,
  checkRecord,
  maxRecordedRanks,
  record,
  type RecordOptions,
  recordOptions,
} from "../record.ts";
import { checkRanksPerNode, type LinkClass, linkClass, linkClasses, parseProfile, type Profile } from "./profile.ts";
import { simulate, type SimulateOptions, type Simulation } from "./simulate.ts";

/** Predicted costs of one attention, forward and backward. */
export interface Prediction {
  readonly seconds: number;
  readonly forwardSeconds: number;
  readonly backwardSeconds: number;
  readonly computeSeconds: number;
  readonly exposedCommunicationSeconds: number;
  /** Maximum traffic that any rank sends over each class of links. */
  readonly sent: Readonly<Record<LinkClass, TrafficTotals>>;
  /** Maximum of the ranks' peak allocated bytes. */
  readonly peakBytes: number;
  readonly simulation: Simulation;
  readonly record: AttentionRecord;
}

/**
 * Records a backend, forward and backward, and simulates the record. For a mesh of more than 1 024 ranks, one rank of
 * each class is recorded and simulated; see `recordRepresentatives`.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { predict, profiles } from "@mosaic/planner";
 * const call = { backend: ring(), tokens: 1_048_576, numHeads: 8, headDim: 128 };
 * const near = predict({ ...call, mesh: { sp: 8 } }, profiles["h100-ib400"]);
 * const far = predict({ ...call, mesh: { sp: 16 } }, profiles["h100-ib400"]);
 * far.sent["intra-node"].messages > 0 && near.sent["inter-node"].messages === 0; // => true
 * near.seconds / far.seconds > 1.8; // => true
 * ```
 */
export function predict(options: RecordOptions, profile: Profile, simulationOptions?: SimulateOptions): Prediction {
  const { ranksPerNode } = parseProfile(profile);
  const { mesh } = recordOptions.parse(options, "predict");
  const attentionRecord =
    meshSize(mesh) > maxRecordedRanks ? recordRepresentatives(options, { ranksPerNode }) : record(options);
  const simulationResult = simulate(attentionRecord, profile, simulationOptions);
  const { seconds, forwardSeconds, backwardSeconds, computeSeconds, exposedCommunicationSeconds } = simulationResult;
  return {
    seconds,
    forwardSeconds,
    backwardSeconds,
    computeSeconds,
    exposedCommunicationSeconds,
    sent: maxSentTraffic(attentionRecord, profile),
    peakBytes: Math.max(...attentionRecord.ranks.map(({ peakBytes }) => peakBytes)),
    simulation: simulationResult,
    record: attentionRecord,
  };
}

/** Returns the maximum traffic that any recorded rank sends over each class of links. */
export function maxSentTraffic(
  attentionRecord: AttentionRecord,
  profile: Profile,
): Readonly<Record<LinkClass, TrafficTotals>> {
  const trafficByRank = countLinks(attentionRecord, profile);
  const maxSentTotal = (kind: LinkClass, unit: keyof TrafficTotals): number =>
    trafficByRank.reduce(
      (max, { forward, backward }) => Math.max(max, forward[kind].sent[unit] + backward[kind].sent[unit]),
      0,
    );
  const entries = linkClasses.map((kind) => {
    return [
      kind,
      {
        bytes: maxSentTotal(kind, "bytes"),
        elements: maxSentTotal(kind, "elements"),
        messages: maxSentTotal(kind, "messages"),
      },
    ];
  });
  return Object.fromEntries(entries) as Record<LinkClass, TrafficTotals>;
}

/** Traffic of one rank in one phase over each class of links. */
export type LinkTraffic = Readonly<
  Record<LinkClass, { readonly sent: TrafficTotals; readonly received: TrafficTotals }>
>;

interface MutableTotals {
  bytes: number;
  elements: number;
  messages: number;
}

/**
 * Counts what each rank of a record sends and receives by the class of the link: within its node, and to other nodes.
 * The second argument is a profile, or only its `ranksPerNode`. Collectives count as in `count` of a record whose
 * hosts are the nodes.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { countLinks, record } from "@mosaic/planner";
 * const run = record({ backend: ring(), mesh: { sp: 4 }, tokens: 64, numHeads: 1, headDim: 8 });
 * const [first, second] = countLinks(run, { ranksPerNode: 2 });
 * first!.forward["inter-node"].sent.messages; // => 0
 * second!.forward["inter-node"].sent.bytes; // => 1536
 * ```
 */
export function countLinks(
  record: AttentionRecord,
  nodes: { readonly ranksPerNode: number },
): readonly { readonly forward: LinkTraffic; readonly backward: LinkTraffic }[] {
  checkRecord("countLinks", record);
  checkRanksPerNode("countLinks", nodes);
  const nodeByRank = Array.from({ length: meshSize(record.options.mesh) }, (_, rank) =>
    Math.floor(rank / nodes.ranksPerNode),
  );
  return record.ranks.map((recordedRank) => {
    const phases = { forward: createEmptyTraffic(), backward: createEmptyTraffic() };
    for (const { phase, peer, isSent, elements, bytes } of listMessages(record, recordedRank, nodeByRank)) {
      const totals: MutableTotals =
        phases[phase][linkClass(nodes, recordedRank.tape.rank, peer)][isSent ? "sent" : "received"];
      totals.elements += elements;
      totals.bytes += bytes;
      totals.messages++;
    }
    return phases;
  });
}

function createEmptyTraffic(): Record<LinkClass, { readonly sent: MutableTotals; readonly received: MutableTotals }> {
  const createTotals = (): MutableTotals => ({ bytes: 0, elements: 0, messages: 0 });
  return Object.fromEntries(
    linkClasses.map((kind) => [kind, { sent: createTotals(), received: createTotals() }]),
  ) as ReturnType<typeof createEmptyTraffic>;
}
