import type { Kernels, RandomSpec } from "../../src/kernels/kernels.ts";
import type { Memory } from "./memory.ts";

/** Philox4x32-10, Salmon et al. 2011: computes four words from a counter and a key. */
export function philox(counter: readonly number[], key: readonly number[]): number[] {
  let [c0, c1, c2, c3] = counter.map(BigInt) as [bigint, bigint, bigint, bigint];
  let [k0, k1] = key.map(BigInt) as [bigint, bigint];
  const low = 0xffffffffn;
  for (let round = 0; round < 10; round++) {
    const [p0, p1] = [0xd2511f53n * c0, 0xcd9e8d57n * c2];
    [c0, c1, c2, c3] = [(p1 >> 32n) ^ c1 ^ k0, p1 & low, (p0 >> 32n) ^ c3 ^ k1, p0 & low];
    [k0, k1] = [(k0 + 0x9e3779b9n) & low, (k1 + 0xbb67ae85n) & low];
  }
  return [c0, c1, c2, c3].map(Number);
}

/** Seed and stream of random numbers. */
type StreamSource = Pick<RandomSpec, "seed" | "stream">;

function drawWords(i: number, { seed, stream }: StreamSource): number[] {
  return philox([i >>> 0, 0, stream >>> 0, 0], [seed >>> 0, Math.floor(seed / 2 ** 32)]);
}

/** Returns number i of a stream, uniform in [0, 1). */
export function uniform(i: number, source: StreamSource): number {
  return drawWords(i, source)[0]! / 2 ** 32;
}

/** Maps a word to (0, 1]. */
const toUnitInterval = (word: number) => (word + 1) / 2 ** 32;

export function random(memory: Memory): Pick<Kernels, "random"> {
  return {
    random(out, spec) {
      const values = Array.from({ length: out.size }, (_, i) => {
        const [a, b] = drawWords(i, spec) as [number, number];
        if (spec.kind === "uniform") return spec.low + (spec.high - spec.low) * (a / 2 ** 32);
        return (
          spec.mean + spec.std * Math.sqrt(-2 * Math.log(toUnitInterval(a))) * Math.cos(2 * Math.PI * toUnitInterval(b))
        );
      });
      memory.store(out, values);
    },
  };
}
