import type { MetaResult } from "@mosaic/attention/meta";

/** A share: so many of so many. */
export interface Share {
  readonly hits: number;
  readonly of: number;
}

/** Of how many query chunks the one source is among the first k that were chosen. */
export function plantedRecall(
  chosen: readonly (readonly number[])[],
  sources: ReadonlyMap<number, number>,
  k: number,
): Share {
  const found = [...sources].filter(([query, source]) => chosen[query]!.slice(0, k).includes(source));
  return { hits: found.length, of: sources.size };
}

/** What share of the remote mass, and of the k chunks with most of it, the first k chosen chunks have. */
export interface MassRecall {
  /** Of the k other chunks with most of the attention, the share that was chosen. */
  readonly recall: number;
  /** Mass on the chosen chunks, over the mass on the k best. */
  readonly captured: number;
}

/** Row by row of mass [n,N], n query chunks beginning with number `first`; their own chunk does not count. */
export function massRecall(
  mass: Float32Array,
  chosen: readonly (readonly number[])[],
  { k, chunks, first = 0 }: { k: number; chunks: number; first?: number },
): MassRecall {
  const rows = mass.length / chunks;
  let [hits, got, best] = [0, 0, 0];
  for (let row = 0; row < rows; row++) {
    const of = (chunk: number): number => mass[row * chunks + chunk]!;
    const others = Array.from({ length: chunks }, (_, chunk) => chunk).filter((chunk) => chunk !== first + row);
    const top = others.sort((a, b) => of(b) - of(a)).slice(0, k);
    const taken = chosen[first + row]!.slice(0, k);
    hits += top.filter((chunk) => taken.includes(chunk)).length;
    got += taken.reduce((sum, chunk) => sum + of(chunk), 0);
    best += top.reduce((sum, chunk) => sum + of(chunk), 0);
  }
  return { recall: hits / (rows * k), captured: got / best };
}

/** The chunks of one sequence that each chunk chose, with the first layer's router or another's. */
export function chosenOf(results: readonly MetaResult[], layer: number, sequence = 0): readonly (readonly number[])[] {
  return results[layer]!.meta.chosen[sequence]!;
}
