import { checkCount, checkRecord } from "../options.ts";
import type { AttentionRecord } from "../record.ts";
import { type Flow, messagesOf } from "../count.ts";
import { type LinkClass, linkClass, linkClasses } from "./profile.ts";

/** What one rank sends and receives in one phase over each class of links. */
export type LinkVolume = Readonly<Record<LinkClass, { readonly sent: Flow; readonly received: Flow }>>;

interface Tally {
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
): readonly { readonly forward: LinkVolume; readonly backward: LinkVolume }[] {
  checkRecord("countLinks", record);
  checkCount("countLinks", "ranksPerNode", nodes?.ranksPerNode);
  return record.ranks.map((recorded) => {
    const phases = { forward: empty(), backward: empty() };
    for (const { phase, peer, sent, elements, bytes } of messagesOf(record, recorded)) {
      const tally: Tally = phases[phase][linkClass(nodes, recorded.tape.rank, peer)][sent ? "sent" : "received"];
      tally.elements += elements;
      tally.bytes += bytes;
      tally.messages++;
    }
    return phases;
  });
}

function empty(): Record<LinkClass, { readonly sent: Tally; readonly received: Tally }> {
  const none = (): Tally => ({ bytes: 0, elements: 0, messages: 0 });
  return Object.fromEntries(linkClasses.map((kind) => [kind, { sent: none(), received: none() }])) as ReturnType<
    typeof empty
  >;
}
