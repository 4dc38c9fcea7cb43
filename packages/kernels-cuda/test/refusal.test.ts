import { expect, test } from "vitest";
import { emulatedBlas } from "./emulated.ts";
import { collectErrors } from "./processes.ts";

// For some matrices of one row or column, cuBLAS 13.5.1 reports only on launch that it does not support the product.
test("the built-in kernel computes products that cuBLASLt rejects on launch", async () => {
  const env = { MOSAIC_CUBLASLT_LIBRARY: emulatedBlas, MOSAIC_EMULATED_LATE_REFUSAL: "1" };
  const setUp = `const device = cuda(), x = device.empty([2, 2], "float32"), out = device.empty([2, 2], "float32");
    device.write(x, [1, 2, 3, 4]);
    const product = async (accumulate) => {
      device.kernels.matmul(out, x, x, accumulate);
      throw new Error((await out.read()).join());
    };`;
  const reportedErrors = await collectErrors({ env }, setUp, ["await product(false)", "await product(true)"]);
  expect(reportedErrors).toEqual(["Error: 7,10,15,22", "Error: 14,20,30,44"]);
});
