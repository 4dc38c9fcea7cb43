/** How elements are stored. Arithmetic always accumulates in float32. */
export type DType = "float32" | "bfloat16" | "float16";

/** The number of each dtype in native code: `enum class DType` in `mosaic/view.h`. */
export const dtypeCodes: Readonly<Record<DType, number>> = { float32: 0, bfloat16: 1, float16: 2 };

/** Bytes per element. */
export const dtypeBytes: Readonly<Record<DType, number>> = { float32: 4, bfloat16: 2, float16: 2 };
