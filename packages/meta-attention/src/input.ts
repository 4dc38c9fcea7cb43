import { DTypeError, formatShape, OptionError, ShapeError, type Tensor } from "@mosaic/core";
import type { Chosen } from "./route/choose.ts";
import type { Reach } from "./route/reach.ts";
import type { ResolvedOptions } from "./settings.ts";

/** x must be [B,S,E] of the module's dtype. */
export function checkInput(x: Tensor, { name: where, embedDim, dtype }: ResolvedOptions): void {
  x.assertUsable(where);
  if (x.rank !== 3 || x.shape[2] !== embedDim || x.shape[0]! < 1) {
    throw new ShapeError({
      where,
      expected: `x [B,S,${embedDim}], embedDim last`,
      received: formatShape(x.shape),
      remedy: "for tensors of other ranks there is MultiAxisHierarchicalAttention",
    });
  }
  if (x.dtype === dtype) return;
  throw new DTypeError({
    where,
    expected: dtype,
    received: x.dtype,
    remedy: `convert x with to("${dtype}"), or give the module dtype: "${x.dtype}"`,
  });
}

/** Chunks given by the caller: for each batch element and chunk, others that it may look at, each once. */
export function checkChosen(
  where: string,
  chosen: Chosen | undefined,
  { batch, reach }: { batch: number; reach: Reach },
): void {
  const { chunks, causal, may } = reach;
  const legal = (i: number, list: readonly number[]): boolean =>
    new Set(list).size === list.length && list.every((j) => Number.isInteger(j) && j >= 0 && j < chunks && may(i, j));
  const whole =
    chosen?.length === batch && chosen.every((rows) => rows.length === chunks && rows.every((row, i) => legal(i, row)));
  if (whole) return;
  throw new OptionError({
    where,
    expected: `chosen[${batch}][${chunks}], lists of other${causal ? ", earlier" : ""} chunks that the mask shows, each once`,
    received: chosen ? JSON.stringify(chosen).slice(0, 100) : "none",
  });
}
