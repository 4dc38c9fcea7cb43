import { type AttentionRecord, count, record } from "@mosaic/attention";
import { arrange } from "./backends.ts";
import { maskFor, placementFor } from "./layout.ts";
import { type Script, scriptsOf } from "./script.ts";
import type { Settings } from "./settings.ts";
import { watched } from "./watched.ts";

/** What a run will do, found out before it. */
export interface Plan {
  /** Bytes that all ranks together will send. */
  readonly bytesSent: number;
  /** What each rank will do. */
  readonly scripts: readonly Script[];
}

/** Runs the very same call on the planner's symbolic devices, which have shapes and no data, and reads what they wrote down. */
export function planOf(settings: Settings): Plan {
  const written = recordOf(settings);
  const sent = count(written).ranks.map(
    ({ forward, backward }) => forward.sent.bytes + (settings.backward ? backward.sent.bytes : 0),
  );
  return { bytesSent: sent.reduce((a, b) => a + b, 0), scripts: scriptsOf(written, settings.backward) };
}

function recordOf(settings: Settings): AttentionRecord {
  const { tokens, heads, dim, dtype } = settings;
  // Head by head, as the ranks will go.
  const { backend, mesh } = arrange(settings);
  return record({
    backend: watched(backend, () => {}),
    mesh,
    tokens,
    heads,
    headDim: dim,
    mask: maskFor(settings),
    placement: placementFor(settings),
    dtype,
  });
}
