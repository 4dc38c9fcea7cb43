import type { Tile } from "../../src/attention/tile.ts";
import type { Kernels } from "../../src/kernels/kernels.ts";
import { visibleKeyRange } from "../../src/mask/slice.ts";
import { positions } from "../../src/placement/span.ts";
import type { Tensor } from "../../src/tensor.ts";
import type { Memory } from "./memory.ts";

// One score at a time. B batch, H heads, Hkv key heads, Sq and Sk rows, D head size.
//
// Scores are float32, as on any device: of 1e9 the difference to a float32 lse is right only if both were rounded.

/** For each local query of a batch element the local keys it sees; a pair covered by two slices is a fault of the caller. */
function visible({ q, k, mask: shared, modifiers }: Tile, batch: number): number[][] {
  const { sampleMasks, origin } = modifiers ?? {};
  const mask = sampleMasks ? [...shared, ...sampleMasks[(origin?.batch ?? 0) + batch]!] : shared;
  const keys = [...positions(k)];
  return [...positions(q)].map((at) => {
    const seen: number[] = [];
    for (const slice of mask) {
      if (at < slice.q0 || at >= slice.q1) continue;
      const { start, end } = visibleKeyRange(slice, at);
      for (const [j, key] of keys.entries()) if (key >= start && key < end) seen.push(j);
    }
    if (new Set(seen).size !== seen.length) throw new Error(`query ${at} sees a key twice`);
    return seen;
  });
}

export function attend(memory: Memory): Pick<Kernels, "attend" | "attendBackward" | "merge"> {
  /** Values of a 4-D tensor by (b, h, s), each a row of D. */
  const listRows = (x: Tensor) => {
    const values = memory.load(x);
    const [, h, s, d] = x.shape as [number, number, number, number];
    return {
      values,
      row: (at: readonly number[]) => {
        const first = ((at[0]! * h + at[1]!) * s + at[2]!) * d;
        return { first, row: values.slice(first, first + d) };
      },
    };
  };
  const dot = (a: readonly number[], b: readonly number[]) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);

  /** Calls `use` with every query row: its key head, its number in [B,H,S] and what it sees. */
  function eachQuery(
    q: Tensor,
    k: Tensor,
    tile: Tile,
    use: (at: number[], key: number[], seen: number[]) => void,
  ): void {
    const [batch, heads, rows] = q.shape as [number, number, number, number];
    for (let b = 0; b < batch; b++) {
      const seen = visible(tile, b);
      for (let h = 0; h < heads; h++) {
        const keyHead = Math.floor((h * k.shape[1]!) / heads);
        for (let s = 0; s < rows; s++) use([b, h, s], [b, keyHead], seen[s]!);
      }
    }
  }

  return {
    attend(state, q, { k, v }, tile) {
      const [queries, keys, values, out] = [listRows(q), listRows(k), listRows(v), listRows(state.out)];
      const lse = memory.load(state.lse);
      let n = -1;
      eachQuery(q, k, tile, (at, head, seen) => {
        n++;
        if (seen.length === 0) return;
        const query = queries.row(at).row;
        const scores = seen.map((j) => memory.float32(tile.scale * dot(query, keys.row([...head, j]).row)));
        const most = Math.max(lse[n]!, ...scores);
        if (most === -Infinity) return;
        const sum = scores.reduce((total, score) => total + Math.exp(score - most), Math.exp(lse[n]! - most));
        const { first, row } = out.row(at);
        const before = Math.exp(lse[n]! - most) / sum;
        for (const d of row.keys()) out.values[first + d] = before === 0 ? 0 : row[d]! * before;
        for (const [i, j] of seen.entries()) {
          const weight = Math.exp(scores[i]! - most) / sum;
          for (const [d, value] of values.row([...head, j]).row.entries()) out.values[first + d]! += weight * value;
        }
        lse[n] = most + Math.log(sum);
      });
      memory.store(state.out, out.values);
      memory.store(state.lse, lse);
    },

    attendBackward(grads, q, saved, { k, v }, tile) {
      const [queries, keys, values, dOuts] = [listRows(q), listRows(k), listRows(v), listRows(saved.dOut)];
      const [dq, dk, dv] = [listRows(grads.dq), listRows(grads.dk), listRows(grads.dv)];
      const [lse, delta] = [memory.load(saved.lse), memory.load(saved.delta)];
      let n = -1;
      eachQuery(q, k, tile, (at, head, seen) => {
        n++;
        const { row: query, first } = queries.row(at);
        const dOut = dOuts.row(at).row;
        for (const j of seen) {
          const { row: key, first: firstKey } = keys.row([...head, j]);
          const score = memory.float32(tile.scale * dot(query, key));
          const weight = lse[n] === -Infinity ? 0 : Math.min(1, Math.exp(score - lse[n]!));
          const dScore = weight * (dot(dOut, values.row([...head, j]).row) - delta[n]!) * tile.scale;
          for (const d of query.keys()) {
            dq.values[first + d]! += dScore * key[d]!;
            dk.values[firstKey + d]! += dScore * query[d]!;
            dv.values[firstKey + d]! += weight * dOut[d]!;
          }
        }
      });
      memory.store(grads.dq, dq.values);
      memory.store(grads.dk, dk.values);
      memory.store(grads.dv, dv.values);
    },

    merge(into, from) {
      const d = into.out.shape.at(-1)!;
      const [a, b] = [memory.load(into.lse), memory.load(from.lse)];
      const [x, y] = [memory.load(into.out), memory.load(from.out)];
      const sums = a.map((lse, i) => {
        const most = Math.max(lse, b[i]!);
        const [own, other] = [lse, b[i]!].map((each) => (each === most ? 1 : Math.exp(each - most)));
        return { most, own: own!, other: other! };
      });
      const merged = sums.map(({ most, own, other }) => (most === -Infinity ? most : most + Math.log(own + other)));
      memory.store(
        into.out,
        x.map((value, i) => {
          const row = Math.floor(i / d);
          const { own, other } = sums[row]!;
          // What lies in `out` of a row that has seen nothing is not looked at.
          if (b[row] === -Infinity) return value;
          return a[row] === -Infinity ? y[i]! : (own * value + other * y[i]!) / (own + other);
        }),
      );
      memory.store(into.lse, merged);
    },
  };
}
