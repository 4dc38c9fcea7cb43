import "./emulated.ts";
import { philox } from "@mosaic/conformance";
import { type AttentionDropout, masks, type Span } from "@mosaic/core";
import { expect, test } from "vitest";
import { cuda } from "../src/index.ts";
import { write } from "./score-modifiers.ts";

const [queries, keys] = [70, 100];
const span = (start: number, length: number, step = 1): Span => ({ start, length, step });
const dropout: AttentionDropout = { probability: 0.3, seed: 2 ** 40 + 3, stream: 5, batchOffset: 7 };

/** Whether the weight of a pair is kept, by definition (core's `AttentionDropout`). */
function isKept({ seed, stream, probability, batchOffset }: AttentionDropout, query: number, key: number): boolean {
  const splitWord = (x: number): [number, number] => [x >>> 0, Math.floor(x / 2 ** 32)];
  const callKey = philox([...splitWord(stream), 0, 0], splitWord(seed)).slice(0, 2);
  const words = philox([Math.floor(key / 4), query, batchOffset + 4, 6], callKey);
  return words[key % 4]! >>> 8 >= Math.fround(probability) * 2 ** 24;
}

test.each(["float32", "bfloat16", "float16"] as const)(
  "attention drops the weights that Philox selects, forward and backward: %s",
  async (dtype) => {
    using device = cuda();
    // Rows of identity matrices isolate each weight. Positions reach the last that fits 31 bits; keys are not aligned
    // to four.
    const [q0, k0, size] = [2 ** 31 - 3 * queries, 1_000_001, 100];
    const tile = {
      q: [span(q0, queries, 3)],
      k: [span(k0, 30, 3), span(k0 + 200, keys - 30)],
      mask: masks.full().slices(2 ** 31, 2 ** 31),
      scale: 2 ** -30,
      modifiers: { dropout, origin: { batch: 4, head: 6 } },
    };
    const listPositions = (spans: readonly Span[]) =>
      spans.flatMap(({ start, length, step }) => Array.from({ length }, (_, i) => start + i * step));
    const keepMask = listPositions(tile.q).flatMap((query) =>
      listPositions(tile.k).map((key) => isKept(dropout, query, key)),
    );
    const createIdentity = (rows: number) =>
      write(
        device,
        new Float32Array(rows * size).map((_, i) => Number(i % (size + 1) === 0)),
        [1, 1, rows, size],
        dtype,
      );
    using q = createIdentity(queries);
    using k = createIdentity(keys);
    using ones = write(device, new Float32Array(keys * size).fill(1), [1, 1, keys, size], dtype);
    const createZeros = (rows: number) => write(device, new Float32Array(rows * size), [1, 1, rows, size]);
    using out = createZeros(queries);
    using lse = write(device, new Float32Array(queries).fill(Number.NEGATIVE_INFINITY), [1, 1, queries]);
    device.kernels.attend({ out, lse }, q, { k, v: k }, tile);
    expect(Array.from(await out.read(), (x) => x !== 0)).toEqual(keepMask);

    using delta = write(device, new Float32Array(queries), [1, 1, queries]);
    using dq = createZeros(queries);
    using dk = createZeros(keys);
    using dv = createZeros(keys);
    device.kernels.attendBackward({ dq, dk, dv }, q, { dOut: q, lse, delta }, { k, v: ones }, tile);
    const transpose = (x: Float32Array) =>
      Array.from({ length: queries * keys }, (_, i) => x[(i % keys) * size + Math.floor(i / keys)] !== 0);
    expect(Array.from(await dq.read(), (x) => x !== 0)).toEqual(keepMask);
    expect(transpose(await dk.read())).toEqual(keepMask);
    expect(transpose(await dv.read())).toEqual(keepMask);
  },
);

// Softcap alone does not depend on positions.
test("attention rejects dropout at positions of 2^31 or more, and accepts softcap there", async () => {
  const runTile = async (change: object): Promise<void> => {
    using device = cuda();
    using x = write(device, [1, 2, 3, 4], [1, 1, 1, 4]);
    using lse = write(device, [0], [1, 1, 1]);
    const farSpans = [span(2 ** 31, 1)];
    const tile = { q: farSpans, k: farSpans, mask: masks.full().slices(2 ** 32, 2 ** 32), scale: 1, modifiers: change };
    device.kernels.attend({ out: x, lse }, x, { k: x, v: x }, tile);
    await device.stream.synchronize();
  };
  await expect(runTile({ dropout })).rejects.toThrow(
    "expected positions below 2147483648 with slopes or dropout, received 2147483648",
  );
  await expect(runTile({ softcap: 2 })).resolves.toBeUndefined();
});
