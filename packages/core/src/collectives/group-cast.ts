import type { DType } from "../storage.ts";
import type { Tensor } from "../tensor.ts";
import { TensorTracker, track } from "../tracking.ts";
import { countRows, type RankCast } from "./cast-plan.ts";
import { type CastRoute, directRoute } from "./cast-route.ts";
import type { ProcessGroup, RowRange, Transfer, Work } from "./process-group.ts";

// groupCast and groupReduce for any engine: rows are packed by the device's kernels, exchanged as one batch of messages, and
// placed or added by kernels when the work is waited for. Rows that lie in memory as they travel are neither packed nor placed.

/** Where rows are exchanged: `post` enqueues a batch of messages of the operation; `variant`: see castHash. */
export interface CastGroup {
  readonly group: Pick<ProcessGroup, "rank" | "size" | "device" | "hosts">;
  readonly post: (transfers: readonly Transfer[], variant: number) => Work;
}

/** Operands of a groupCast or groupReduce, valid. */
export interface CastOperands {
  readonly out: readonly Tensor[];
  readonly input: readonly Tensor[];
  readonly cast: RankCast;
}

/** Rows of a tensor [..., rows, width], as a view. */
function rowsOf(x: Tensor, { start, length }: RowRange): Tensor {
  const axis = x.shape.length - 2;
  const offset = x.offset + (length > 0 ? start * x.strides[axis]! : 0);
  return x.view({ shape: x.shape.with(axis, length), offset });
}

/** Uninitialised, like `x` but for rows and dtype. */
function emptyRows(x: Tensor, rows: number, dtype: DType = x.dtype): Tensor {
  return x.device.empty(x.shape.with(-2, rows), dtype);
}

/** A copy of some rows, one behind the other. */
function pack(x: Tensor, ranges: readonly RowRange[], dtype: DType = x.dtype): Tensor {
  const packed = emptyRows(x, countRows(ranges), dtype);
  let start = 0;
  for (const range of ranges) {
    using from = rowsOf(x, range);
    using to = rowsOf(packed, { start, length: range.length });
    if (to.size > 0) x.device.kernels.copy(to, from);
    start += range.length;
  }
  return packed;
}

/** Rows that lie in memory as they travel: one range of one plane, or all rows. They are not copied. */
function contiguousRows(x: Tensor, ranges: readonly RowRange[], dtype: DType): Tensor | undefined {
  if (ranges.length !== 1 || x.dtype !== dtype) return undefined;
  const rows = rowsOf(x, ranges[0]!);
  if (rows.isContiguous) return rows;
  rows[Symbol.dispose]();
  return undefined;
}

/** A batch whose sends are packed where they must be, and released as soon as they are posted: the engine keeps them. */
class PackedBatch {
  readonly #transfers: Transfer[] = [];
  readonly #packed: Tensor[] = [];

  // oxlint-disable-next-line max-params -- to whom, of what, which rows, as what
  send(to: number, x: Tensor, ranges: readonly RowRange[], dtype: DType = x.dtype): void {
    const tensor = contiguousRows(x, ranges, dtype) ?? pack(x, ranges, dtype);
    this.#packed.push(tensor);
    this.#transfers.push({ tensor, to });
  }

  receive(from: number, tensor: Tensor): Tensor {
    this.#transfers.push({ tensor, from });
    return tensor;
  }

  post({ post }: CastGroup, variant: number): Work {
    const work = post(this.#transfers, variant);
    for (const tensor of this.#packed) tensor[Symbol.dispose]();
    return work;
  }
}

/** Work that is finished by kernels once it is waited for; it owns what they need until then. */
class PlacedWork implements Work {
  readonly #work: Work;
  readonly #tracker: TensorTracker;
  readonly #place: () => void;
  #waited = false;

  constructor(work: Work, tracker: TensorTracker, place: () => void) {
    this.#work = work;
    this.#tracker = tracker;
    this.#place = place;
  }

  wait(): void {
    if (this.#waited) return;
    this.#waited = true;
    try {
      this.#work.wait();
      track(this.#tracker, this.#place);
    } finally {
      this.#tracker.release();
    }
  }
}

/** The ranks after this one, then those before it: not all send to rank 0 first. */
function* othersAfter({ rank, size }: Pick<ProcessGroup, "rank" | "size">): Generator<number, void, undefined> {
  for (let i = 1; i < size; i++) yield (rank + i) % size;
}

/** Sends rows to their receivers, and places what arrives, in the order of senders, when the work is waited for. */
export function castRows(
  on: CastGroup,
  { out, input, cast }: CastOperands,
  route: CastRoute = directRoute(cast),
): Work {
  const tracker = new TensorTracker();
  return track(tracker, () => {
    const batch = new PackedBatch();
    for (const peer of othersAfter(on.group)) {
      const ranges = route.sent[peer]!;
      if (ranges.length > 0) for (const x of input) batch.send(peer, x, ranges);
    }
    // `out` may be disposed before the work is waited for: its rows are held by views.
    let start = 0;
    const places = cast.received.map((ranges) => {
      const length = countRows(ranges);
      const views = length > 0 ? out.map((x) => rowsOf(x, { start, length })) : [];
      start += length;
      return views;
    });
    // What a relay receives has rows for others among it.
    const arrived = route.received.map((rows, sender) =>
      rows > 0
        ? out.map((x, i) => {
            const place = route.kept[sender] ? undefined : places[sender]![i];
            return batch.receive(sender, place?.isContiguous ? place : emptyRows(x, rows));
          })
        : [],
    );
    return new PlacedWork(batch.post(on, route.isDirect ? 0 : 1), tracker, () => {
      const forwarded = route.isDirect ? [] : forwardRows(on, route, arrived, places);
      for (const [sender, views] of places.entries()) {
        for (const [i, to] of views.entries()) {
          copyRows(to, forwarded[sender]?.[i] ?? arrived[sender]![i]!, route.kept[sender]);
        }
      }
    });
  });
}

/** All rows of `from`, or some, one behind the other. */
function copyRows(to: Tensor, from: Tensor, ranges?: readonly RowRange[]): void {
  if (to.size === 0 || to === from) return;
  if (!ranges) return to.device.kernels.copy(to, from);
  let start = 0;
  for (const range of ranges) {
    using part = rowsOf(from, range);
    using place = rowsOf(to, { start, length: range.length });
    to.device.kernels.copy(place, part);
    start += range.length;
  }
}

/** Sends back what was received by a cast, and adds what arrives to `out`, in the order of ranks, when it is waited for. */
export function reduceRows(on: CastGroup, { out, input, cast }: CastOperands, wire: DType = "float32"): Work {
  const tracker = new TensorTracker();
  return track(tracker, () => {
    const batch = new PackedBatch();
    const starts: number[] = [];
    cast.received.reduce((start, ranges, owner) => (starts[owner] = start) + countRows(ranges), 0);
    for (const owner of othersAfter(on.group)) {
      const length = countRows(cast.received[owner]!);
      if (length === 0) continue;
      for (const x of input) batch.send(owner, x, [{ start: starts[owner]!, length }], wire);
    }
    const arrived = cast.sent.map((ranges, receiver) =>
      ranges.length > 0 ? out.map((x) => batch.receive(receiver, emptyRows(x, countRows(ranges), wire))) : [],
    );
    const sums = out.map((x) => x.view({}));
    return new PlacedWork(batch.post(on, wire === "float32" ? 0 : 1), tracker, () => {
      for (const [receiver, parts] of arrived.entries()) {
        for (const [i, part] of parts.entries()) {
          addRows(sums[i]!, part, cast.sent[receiver]!);
          part[Symbol.dispose]();
        }
      }
    });
  });
}

function addRows(sum: Tensor, part: Tensor, ranges: readonly RowRange[]): void {
  if (part.size === 0) return;
  let start = 0;
  for (const range of ranges) {
    using to = rowsOf(sum, range);
    using from = rowsOf(part, { start, length: range.length });
    sum.device.kernels.binary("add", to, to, from);
    start += range.length;
  }
}

/** The second hop: what arrived for others goes to them. Returns what came by another rank of this host, by sender. */
// oxlint-disable-next-line max-params -- where, by which route, what has arrived, and what it is like
function forwardRows(
  on: CastGroup,
  { forwards, forwarded }: CastRoute,
  arrived: readonly (readonly Tensor[])[],
  places: readonly (readonly Tensor[])[],
): readonly (readonly Tensor[])[] {
  const batch = new PackedBatch();
  for (const { to, sender, ranges } of forwards) for (const x of arrived[sender]!) batch.send(to, x, ranges);
  const received: Tensor[][] = [];
  for (const { from, sender, rows } of forwarded) {
    received[sender] = places[sender]!.map((x) => batch.receive(from, x.isContiguous ? x : emptyRows(x, rows)));
  }
  batch.post(on, 2).wait();
  return received;
}
