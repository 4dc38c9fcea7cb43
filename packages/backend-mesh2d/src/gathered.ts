import type { Layout, Span } from "@mosaic/core";

/** The layout of several ranks' chunks along an axis, one after the other: where rows lie that were gathered. */
export function gathered(layout: Layout, axis: string, ranks: readonly number[]): Layout {
  const { length } = layout;
  const axes = layout.axes.filter((each) => each !== axis);
  const [only] = ranks;
  // One chunk is what a scheduled tile works on: its spans are there already.
  if (ranks.length === 1) return { length, axes, spans: (at) => layout.spans({ ...at, [axis]: only! }) };
  return {
    length,
    axes,
    spans: (at) => joined(ranks.flatMap((rank) => layout.spans({ ...at, [axis]: rank }))),
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
