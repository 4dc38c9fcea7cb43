/** Ranks in two dimensions. */
export type Shape = readonly [number, number];

/** All shapes of so many ranks, the most nearly square first, and of two such the wider. */
export function shapesOf(ranks: number): readonly Shape[] {
  const shapes: Shape[] = [];
  for (let rows = 1; rows <= ranks; rows++) if (ranks % rows === 0) shapes.push([rows, ranks / rows]);
  return shapes.toSorted((a, b) => Math.max(...a) - Math.max(...b) || a[0] - b[0]);
}

/** "2x4" as a shape; undefined if it is none. */
export function parseShape(text: string): Shape | undefined {
  const found = /^([1-9]\d?)[x×]([1-9]\d?)$/.exec(text);
  return found ? [Number(found[1]), Number(found[2])] : undefined;
}
