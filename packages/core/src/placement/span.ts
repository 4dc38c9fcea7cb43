/** Global positions start, start + step, … (`length` of them). A shard is an ordered list of spans. */
export interface Span {
  readonly start: number;
  readonly length: number;
  readonly step: number;
}

/** Number of positions in a list of spans. */
export function spansLength(spans: readonly Span[]): number {
  return spans.reduce((sum, span) => sum + span.length, 0);
}
