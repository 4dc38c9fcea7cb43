import type { Coordinate, Layout, Span } from "@mosaic/core";

/** The layout of several ranks' chunks along an axis, one after the other: where rows lie that were gathered. */
export function gathered(layout: Layout, axis: string, ranks: readonly number[]): Layout {
  const { length } = layout;
  const axes = layout.axes.filter((each) => each !== axis);
  // One chunk is what a scheduled tile works on: its spans are there already.
  if (ranks.length === 1) return { length, axes, spans: lastOf((at) => layout.spans({ ...at, [axis]: ranks[0]! })) };
  return {
    length,
    axes,
    spans: (at) => joined(ranks.flatMap((rank) => layout.spans({ ...at, [axis]: rank }))),
  };
}

/** The layouts of any ranks' chunks; that of one rank is asked for block after block, and stays. */
export function gatheredAlong(layout: Layout, axis: string): (ranks: readonly number[]) => Layout {
  const known: (Layout | undefined)[] = [];
  return (ranks) => {
    const [only] = ranks;
    return ranks.length === 1 ? (known[only!] ??= gathered(layout, axis, ranks)) : gathered(layout, axis, ranks);
  };
}

/** What is found for a coordinate, kept until there is another. */
function lastOf<T>(find: (at: Coordinate) => T): (at: Coordinate) => T {
  let last: Coordinate | undefined;
  let found: T;
  return (at) => {
    if (at !== last) found = find((last = at));
    return found;
  };
}

/** The same positions in as few spans as possible: kernels work span by span. */
function joined(spans: readonly Span[]): Span[] {
  const result: Span[] = [];
  for (const span of spans) {
    if (span.length === 0) continue;
    const last = result.at(-1);
    if (last && last.step === span.step && last.start + last.length * last.step === span.start) {
      result[result.length - 1] = { ...last, length: last.length + span.length };
    } else result.push(span);
  }
  return result;
}
