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

/** What one attention, forward and backward, is predicted to take. */
export interface Prediction {
  readonly seconds: number;
  readonly forwardSeconds: number;
  readonly backwardSeconds: number;
  readonly computeSeconds: number;
  readonly exposedCommunicationSeconds: number;
  /** The most that any rank sends over each class of links. */
  readonly sent: Readonly<Record<LinkClass, TrafficTotals>>;
  /** The most that any rank has allocated at once. */
  readonly peakBytes: number;
  readonly simulation: Simulation;
  readonly record: AttentionRecord;
}

/**
 * Records a backend, forward and backward, and simulates the record. Of a mesh of more than 1 024 ranks one rank of each class is
 * recorded and simulated: see `recordRepresentatives`.
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
export function predict(options: RecordOptions, profile: Profile, simulation?: SimulateOptions): Prediction {
  const { ranksPerNode } = parseProfile(profile);
  const { mesh } = recordOptions.parse(options, "predict");
  const run = meshSize(mesh) > maxRecordedRanks ? recordRepresentatives(options, { ranksPerNode }) : record(options);
  const result = simulate(run, profile, simulation);
  const { seconds, forwardSeconds, backwardSeconds, computeSeconds, exposedCommunicationSeconds } = result;
  return {
    seconds,
    forwardSeconds,
    backwardSeconds,
    computeSeconds,
    exposedCommunicationSeconds,
    sent: maxSent(run, profile),
    peakBytes: Math.max(...run.ranks.map(({ peakBytes }) => peakBytes)),
    simulation: result,
    record: run,
  };
}

/** The most that any rank of a record, or of some of its ranks, sends over each class of links. */
export function maxSent(run: AttentionRecord, profile: Profile): Readonly<Record<LinkClass, TrafficTotals>> {
  const ranks = countLinks(run, profile);
  const most = (kind: LinkClass, what: keyof TrafficTotals): number =>
    ranks.reduce(
      (max, { forward, backward }) => Math.max(max, forward[kind].sent[what] + backward[kind].sent[what]),
      0,
    );
  const entries = linkClasses.map((kind) => {
    return [kind, { bytes: most(kind, "bytes"), elements: most(kind, "elements"), messages: most(kind, "messages") }];
  });
  return Object.fromEntries(entries) as Record<LinkClass, TrafficTotals>;
}

/** What one rank sends and receives in one phase over each class of links. */
export type LinkTraffic = Readonly<
  Record<LinkClass, { readonly sent: TrafficTotals; readonly received: TrafficTotals }>
>;

interface MutableTotals {
  bytes: number;
  elements: number;
  messages: number;
}

/**
 * Counts what each rank of a record sends and receives by the class of the link: within its node, to other nodes. The second
 * argument is a profile, or what matters of it here. Collectives count in their direct form, as in `count`.
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
  return record.ranks.map((recorded) => {
    const phases = { forward: emptyTraffic(), backward: emptyTraffic() };
    for (const { phase, peer, sent, elements, bytes } of listMessages(record, recorded)) {
      const addTraffic: MutableTotals =
        phases[phase][linkClass(nodes, recorded.tape.rank, peer)][sent ? "sent" : "received"];
      addTraffic.elements += elements;
      addTraffic.bytes += bytes;
      addTraffic.messages++;
    }
    return phases;
  });
}

function emptyTraffic(): Record<LinkClass, { readonly sent: MutableTotals; readonly received: MutableTotals }> {
  const none = (): MutableTotals => ({ bytes: 0, elements: 0, messages: 0 });
  return Object.fromEntries(linkClasses.map((kind) => [kind, { sent: none(), received: none() }])) as ReturnType<
    typeof emptyTraffic
  >;
}
