import { type AttentionBackend, ring, ringTraffic } from "@mosaic/attention";
import { AXIS, layoutFor, maskFor } from "./layout.ts";
import type { Settings } from "./settings.ts";

/** A way to attend that this program offers. */
interface Offer {
  /** Over an inner backend, which does a block's work. */
  make(inner: AttentionBackend): AttentionBackend;
  /** What one rank sends, by the backend's own formula. */
  bytesSent(settings: Settings, rank: number): number;
}

const offers: Readonly<Record<string, Offer>> = {
  ring: {
    make: (inner) => ring({ axis: AXIS, inner }),
    bytesSent(settings, rank) {
      const { ranks, tokens, heads, dim, dtype, backward } = settings;
      const layout = layoutFor(settings, [AXIS]);
      const traffic = ringTraffic({
        mesh: { [AXIS]: ranks },
        call: { at: { [AXIS]: rank }, mask: maskFor(settings).slices(tokens, tokens), queries: layout, keys: layout },
        width: heads * dim,
        dtype,
      });
      return traffic.forward.bytesSent + (backward ? traffic.backward.bytesSent : 0);
    },
  },
  local: { make: (inner) => inner, bytesSent: () => 0 },
};

export const backendNames = (): readonly string[] => Object.keys(offers);

export function makeBackend(name: string, inner: AttentionBackend): AttentionBackend {
  return offers[name]!.make(inner);
}

/** Bytes that all ranks together must send. */
export function closedForm(settings: Settings): number {
  const { bytesSent } = offers[settings.backend]!;
  return Array.from({ length: settings.ranks }, (_, rank) => bytesSent(settings, rank)).reduce((a, b) => a + b, 0);
}
