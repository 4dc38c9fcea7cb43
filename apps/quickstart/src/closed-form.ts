import { type Layout, ring } from "@mosaic/attention";
import { type Coordinate, coordinateOf, type Slice, type Traffic } from "@mosaic/attention/core";
import { mesh2dTraffic, ringTraffic, ulyssesTraffic } from "@mosaic/attention/planner";
import { arrange, layoutFor, maskFor } from "./backends.ts";
import type { Settings } from "./settings.ts";

/** One rank's call, as the formulas take it. */
interface FormulaInput {
  readonly settings: Settings;
  readonly mesh: Coordinate;
  readonly call: {
    readonly at: Coordinate;
    readonly mask: readonly Slice[];
    readonly queries: Layout;
    readonly keys: Layout;
  };
}

interface PassTraffic {
  readonly forward: Traffic;
  readonly backward: Traffic;
}

const formulas: Readonly<Record<string, (site: FormulaInput) => readonly PassTraffic[]>> = {
  local: () => [],
  ring: (site) => [ringTraffic({ ...site, ...rowWidth(site, site.settings.numHeads) })],
  mesh2d: (site) => [mesh2dTraffic({ ...site, ...attentionSizes(site.settings), shape: site.settings.shape! })],
  ulysses: (site) => [ulyssesTraffic({ ...site, ...attentionSizes(site.settings) })],
  composed,
  hierarchical,
};

/**
 * Bytes that all ranks together must send, by the formulas of the backends and not by running any of them; undefined for
 * what was chosen automatically, which may be any nest.
 */
export function closedForm(settings: Settings): number | undefined {
  const formula = formulas[settings.backend];
  if (!formula) return undefined;
  const arrangement = arrange(settings);
  const { mesh } = arrangement;
  const layout = layoutFor(settings, arrangement);
  const mask = maskFor(settings).slices(settings.tokens, settings.tokens);
  let bytes = 0;
  for (let rank = 0; rank < settings.ranks; rank++) {
    const call = { at: coordinateOf(rank, mesh), mask, queries: layout, keys: layout };
    for (const { forward, backward } of formula({ settings, mesh, call })) {
      bytes += forward.bytesSent + (settings.backward ? backward.bytesSent : 0);
    }
  }
  return bytes;
}

/** Rows for heads among the ranks of a stretch; then a ring of those with the same heads, for these alone. */
function composed(site: FormulaInput): readonly PassTraffic[] {
  const { settings, mesh, call } = site;
  const { head, ...at } = call.at as { head: number; seq: number };
  const [ranks, { numHeads }] = [mesh["head"]!, settings];
  const own = Math.floor(numHeads / ranks) + (head < numHeads % ranks ? 1 : 0);
  const inner = ring({ axis: "seq" });
  return [
    ulyssesTraffic({ ...site, ...attentionSizes(settings), axis: "head", inner }),
    ringTraffic({ ...site, ...rowWidth(site, own), axis: "seq", call: { ...call, at } }),
  ];
}

/** A ring of nodes, and at each of its steps a ring within the node, of what is there then. */
function hierarchical(site: FormulaInput): readonly PassTraffic[] {
  const width = rowWidth(site, site.settings.numHeads);
  const nodes = Array.from({ length: site.mesh["node"]! }, (_, node) => ({ ...site.call.at, node }));
  return [
    ringTraffic({ ...site, ...width, axis: "node", inner: ring({ axis: "gpu" }) }),
    ...nodes.map((from) => ringTraffic({ ...site, ...width, axis: "gpu", from })),
  ];
}

function rowWidth(
  { settings: { dim, dtype } }: FormulaInput,
  numHeads: number,
): Pick<Settings, "dtype"> & { width: number } {
  return { width: numHeads * dim, dtype };
}

function attentionSizes({ numHeads, dim, dtype }: Settings) {
  return { batch: 1, numHeads, numKvHeads: numHeads, headDim: dim, dtype } as const;
}
