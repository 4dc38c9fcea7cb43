import { demand } from "../options.ts";
import { type Flow } from "../count.ts";
import { recordClasses } from "../classes/record-classes.ts";
import { ranksOf } from "../classes/translations.ts";
import { type AttentionRecord, maxRecordedRanks, record, type RecordOptions } from "../record.ts";
import { countLinks } from "./links.ts";
import { parseProfile } from "./parse-profile.ts";
import { type LinkClass, linkClasses, type Profile } from "./profile.ts";
import { type Simulation, simulate, type SimulateOptions } from "./simulate.ts";

/** What one attention, forward and backward, is predicted to take. */
export interface Prediction {
  readonly seconds: number;
  readonly forwardSeconds: number;
  readonly backwardSeconds: number;
  readonly computeSeconds: number;
  readonly exposedCommunicationSeconds: number;
  /** The most that any rank sends over each class of links. */
  readonly sent: Readonly<Record<LinkClass, Flow>>;
  /** The most that any rank has allocated at once. */
  readonly peakBytes: number;
  readonly simulation: Simulation;
  readonly record: AttentionRecord;
}

/**
 * Records a backend, forward and backward, and simulates the record. Of a mesh of more than 1 024 ranks one rank of each class is
 * recorded and simulated: see `recordClasses`.
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
export function predict(options: RecordOptions, profile: Profile, simulation: SimulateOptions = {}): Prediction {
  const { ranksPerNode } = parseProfile(profile);
  demand(
    "predict",
    typeof (options as Partial<RecordOptions> | null | undefined)?.mesh === "object" && options.mesh !== null,
    "options with a mesh",
    options,
  );
  const run = ranksOf(options.mesh) > maxRecordedRanks ? recordClasses(options, { ranksPerNode }) : record(options);
  const result = simulate(run, profile, simulation);
  const { seconds, forwardSeconds, backwardSeconds, computeSeconds, exposedCommunicationSeconds } = result;
  return {
    seconds,
    forwardSeconds,
    backwardSeconds,
    computeSeconds,
    exposedCommunicationSeconds,
    sent: mostSent(run, profile),
    peakBytes: Math.max(...run.ranks.map(({ peakBytes }) => peakBytes)),
    simulation: result,
    record: run,
  };
}

/** The most that any rank of a record, or of some of its ranks, sends over each class of links. */
export function mostSent(run: AttentionRecord, profile: Profile): Readonly<Record<LinkClass, Flow>> {
  const ranks = countLinks(run, profile);
  const most = (kind: LinkClass, what: keyof Flow): number =>
    ranks.reduce(
      (max, { forward, backward }) => Math.max(max, forward[kind].sent[what] + backward[kind].sent[what]),
      0,
    );
  const entries = linkClasses.map((kind) => {
    return [kind, { bytes: most(kind, "bytes"), elements: most(kind, "elements"), messages: most(kind, "messages") }];
  });
  return Object.fromEntries(entries) as Record<LinkClass, Flow>;
}
