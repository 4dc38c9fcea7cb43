import type { AttentionState, Context, ProcessGroup, Tensor } from "@mosaic/core";

// Merges the attention states of a few queries over the ranks of an axis: the result is the same on all ranks.

/** The attention states of a batch in one buffer: [B,T,H,Dv+1], each row out followed by lse. */
export interface PackedState extends AttentionState {
  readonly memory: Tensor;
}

/** Sizes of a state: out [batch,heads,rows,valueSize]. */
export interface StateShape {
  readonly batch: number;
  readonly heads: number;
  readonly rows: number;
  readonly valueSize: number;
}

/** Allocates a packed state, uninitialized. */
export function emptyPackedState({ device }: Context, shape: StateShape): PackedState {
  const { batch, heads, rows, valueSize } = shape;
  return unpackState(device.empty([batch, rows, heads, valueSize + 1], "float32"), shape);
}

/** Allocates an uninitialized state for a single rank. Its `out` has the memory order [B,T,H,Dv] and is the result. */
export function emptyUnpackedState({ device }: Context, { batch, heads, rows, valueSize }: StateShape): AttentionState {
  return {
    out: device.empty([batch, rows, heads, valueSize], "float32").permute([0, 2, 1, 3]),
    lse: device.empty([batch, heads, rows], "float32"),
  };
}

/**
 * Returns out and lse as views of memory [..,B,T,H,Dv+1]. State `index` starts at `index` times the size of a state.
 */
function unpackState(memory: Tensor, { batch, heads, rows, valueSize }: StateShape, index = 0): PackedState {
  const width = valueSize + 1;
  const offset = memory.offset + index * batch * rows * heads * width;
  const strides = [rows * heads * width, width, heads * width];
  return {
    memory,
    out: memory.view({ shape: [batch, heads, rows, valueSize], strides: [...strides, 1], offset }),
    lse: memory.view({ shape: [batch, heads, rows], strides, offset: offset + valueSize }),
  };
}

/**
 * Computes the state over the keys of all ranks: an all-gather, followed by a merge in rank order, so that the result
 * is bitwise equal on all ranks. Sends and receives (size − 1) · B · T · H · (Dv + 1) · 4 bytes.
 */
export function mergeOverRanks(group: ProcessGroup, localState: PackedState, shape: StateShape): PackedState {
  const { device } = group;
  const gatheredMemory = device.empty([group.size, ...localState.memory.shape], "float32");
  group.allGather(gatheredMemory, localState.memory, { label: `KvCache(${group.name})` }).wait();
  const mergedState = unpackState(gatheredMemory, shape);
  for (let rank = 1; rank < group.size; rank++) {
    device.kernels.merge(mergedState, unpackState(gatheredMemory, shape, rank));
  }
  return mergedState;
}
