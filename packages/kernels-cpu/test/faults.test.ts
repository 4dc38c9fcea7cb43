import { deviceSuite } from "@mosaic/conformance";
import type { Kernels } from "@mosaic/core";
import { expect, test } from "vitest";
import { type CpuDevice, cpu } from "../src/index.ts";

// The suite must notice. Each of these devices is wrong in one small way, and only where there is more than one block.

/** A device with other kernels. */
function withKernels(change: (kernels: Kernels) => Partial<Kernels>): CpuDevice {
  const device = cpu({ threads: 1 });
  const bindTo = <T extends object>(target: T, changed: Partial<T>): T =>
    new Proxy(target, {
      get(_, name) {
        const value = Reflect.get(changed, name) ?? Reflect.get(target, name, target);
        return typeof value === "function" ? value.bind(target) : value;
      },
    });
  return bindTo<CpuDevice>(device, { kernels: bindTo(device.kernels, change(device.kernels)) });
}

const BLOCK = 512;

/** Of more keys than a block the last is left out. */
const loseLastKey = (): CpuDevice =>
  withKernels((kernels) => ({
    attend(state, q, kv, tile) {
      const keys = kv.k.shape[2]!;
      if (keys <= BLOCK) return kernels.attend(state, q, kv, tile);
      using k = kv.k.slice(2, 0, keys - 1);
      using v = kv.v.slice(2, 0, keys - 1);
      const { start, length } = tile.k[0]!;
      kernels.attend(state, q, { k, v }, { ...tile, k: [{ start, length: length - 1, step: 1 }] });
    },
  }));

/** Of more products than a block the last is left out. */
const loseLastProduct = (): CpuDevice =>
  withKernels((kernels) => ({
    matmul(out, a, b, ...options) {
      const products = a.shape.at(-1)!;
      if (products <= BLOCK) return kernels.matmul(out, a, b, ...options);
      using left = a.slice(-1, 0, products - 1);
      using right = b.slice(-2, 0, products - 1);
      kernels.matmul(out, left, right, ...options);
    },
  }));

test.each([
  ["attention: more keys", loseLastKey],
  ["matmul", loseLastProduct],
] as const)(
  "the suite rejects a device that omits the last row of large operands: %s",
  async (caseName, makeFaultyDevice) => {
    const cases = deviceSuite(makeFaultyDevice).filter(({ name }) => name.startsWith(caseName));
    const outcomes = await Promise.allSettled(cases.map(({ run }) => run()));
    const failures = outcomes.filter((outcome) => outcome.status === "rejected").map(({ reason }) => String(reason));
    expect(failures).not.toEqual([]);
    for (const failure of failures) expect(failure).toContain("AssertionError");
  },
);
