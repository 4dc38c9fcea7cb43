import { DTypeError, formatShape, OptionError, ShapeError, type Tensor } from "@mosaic/core";
import { isAllowed } from "./route/allowed.ts";
import type { Chosen } from "./route/choose.ts";

/** x must be [B,S,E], float32. */
export function checkInput(where: string, x: Tensor, { embedDim }: { embedDim: number }): void {
  x.assertUsable(where);
  if (x.rank !== 3 || x.shape[2] !== embedDim || x.shape[0]! < 1) {
    throw new ShapeError({
      where,
      expected: `x [B,S,${embedDim}], embedDim last`,
      received: formatShape(x.shape),
      remedy: "for tensors of other ranks there is MultiAxisHierarchicalAttention",
    });
  }
  if (x.dtype === "float32") return;
  throw new DTypeError({ where, expected: "float32", received: x.dtype, remedy: 'convert x with to("float32")' });
}

/** Chunks given by the caller: for each batch element and chunk, others that it may look at, each once. */
export function checkChosen(
  where: string,
  chosen: Chosen | undefined,
  { batch, chunks, causal }: { batch: number; chunks: number; causal: boolean },
): void {
  const legal = (i: number, list: readonly number[]): boolean =>
    new Set(list).size === list.length &&
    list.every((j) => Number.isInteger(j) && j >= 0 && j < chunks && isAllowed(i, j, causal));
  const whole =
    chosen?.length === batch && chosen.every((rows) => rows.length === chunks && rows.every((row, i) => legal(i, row)));
  if (whole) return;
  throw new OptionError({
    where,
    expected: `chosen[${batch}][${chunks}], lists of other${causal ? ", earlier" : ""} chunks, each once`,
    received: chosen ? JSON.stringify(chosen).slice(0, 100) : "none",
  });
}
