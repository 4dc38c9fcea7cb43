import type { Table } from "../papers/table.ts";
import { type Ceilings, floorOf, h200 } from "./floor.ts";
import { bytesOf, flopsOf, problemOf, type Sizes } from "./problem.ts";

/** Operations, bytes and exponentials of every size, and the milliseconds that each needs at least. */
export function floorTables(sizes: Sizes, lengths: readonly number[], ceilings: Ceilings = h200): readonly Table[] {
  return (["forward", "backward"] as const).flatMap((direction) =>
    (["full", "causal"] as const).map((mask) => ({
      id: `floor.${direction}.${mask}`,
      title: `${direction}, ${mask}`,
      columns: [
        { key: "n", head: "n", as: "integer" },
        { key: "tflop", head: "TFLOP", as: 2 },
        { key: "gigabytes", head: "GB", as: 2 },
        { key: "products", head: "products ms", as: 2 },
        { key: "memory", head: "memory ms", as: 2 },
        { key: "exp128", head: "exp ms, d 128", as: 2 },
        { key: "exp64", head: "exp ms, d 64", as: 2 },
      ],
      rows: lengths
        .toSorted((a, b) => a - b)
        .map((n) => {
          const shape = { direction, dtype: "bf16", mask, n } as const;
          const problem = problemOf({ ...shape, d: 128 }, sizes);
          const { products, memory, exponentials } = floorOf(problem, ceilings);
          return {
            n,
            tflop: flopsOf(problem) / 1e12,
            gigabytes: bytesOf(problem) / 1e9,
            products: products * 1e3,
            memory: memory * 1e3,
            exp128: exponentials * 1e3,
            exp64: floorOf(problemOf({ ...shape, d: 64 }, sizes), ceilings).exponentials * 1e3,
          };
        }),
    })),
  );
}
