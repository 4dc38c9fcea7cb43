import type { DType } from "../storage.ts";
import type { Tensor } from "../tensor.ts";
import { contiguousStrides } from "../shape.ts";
import { TensorTracker, track } from "../tracking.ts";
import { countRows, inRingOrder, locateReceivedRows, type RankGroupCast } from "./cast-plan.ts";
import type { GroupCastRoute } from "./cast-route.ts";
import type { ProcessGroup, RowRange, Transfer, Work } from "./process-group.ts";

// groupCast and groupReduce for any engine: the device's kernels pack rows, one batch of messages exchanges them, and
// kernels place or add them when the work is waited for. Rows that are already contiguous in memory are neither packed
// nor placed.

/**
 * One message of a cast: contiguous rows of a tensor, or all rows if `rows` is undefined. With a thousand ranks, each
 * has thousands of messages, so a tensor is created for a message only if an engine needs it.
 */
export interface RowTransfer {
  readonly tensor: Tensor;
  readonly rows: RowRange | undefined;
  readonly peer: number;
  readonly isSend: boolean;
}

/**
 * The group that exchanges rows. `post` enqueues a batch of messages of the operation; `operationCode`: see
 * groupCastHash.
 */
export interface GroupCastContext {
  readonly group: Pick<ProcessGroup, "rank" | "size" | "device" | "hosts">;
  readonly post: (transfers: readonly RowTransfer[], operationCode: number) => Work;
}

/** Creates a tensor for each message of a batch. Appends the tensors that the caller must dispose to `ownedTensors`. */
export function toTransfers(messages: readonly RowTransfer[], ownedTensors: Tensor[]): Transfer[] {
  return messages.map(({ tensor: x, rows, peer, isSend }) => {
    const tensor = rows ? viewRows(x, rows) : x;
    if (rows) ownedTensors.push(tensor);
    return isSend ? { tensor, to: peer } : { tensor, from: peer };
  });
}

/** The validated operands of a groupCast or groupReduce. */
export interface GroupCastOperands {
  readonly out: readonly Tensor[];
  readonly input: readonly Tensor[];
  readonly cast: RankGroupCast;
}

/** Returns a view of some rows of a tensor [..., rows, width]. */
function viewRows(x: Tensor, { start, length }: RowRange): Tensor {
  const axis = x.shape.length - 2;
  const offset = x.offset + (length > 0 ? start * x.strides[axis]! : 0);
  return x.view({ shape: x.shape.with(axis, length), offset });
}

/** Allocates an uninitialized tensor like `x`, except for rows and dtype. */
function allocateRows(x: Tensor, rows: number, dtype: DType = x.dtype): Tensor {
  return x.device.empty(x.shape.with(-2, rows), dtype);
}

/** Returns a contiguous copy of some rows. */
function copyRows(x: Tensor, ranges: readonly RowRange[], dtype: DType = x.dtype): Tensor {
  const packedRows = allocateRows(x, countRows(ranges), dtype);
  let start = 0;
  for (const range of ranges) {
    using sourceRows = viewRows(x, range);
    using packedTarget = viewRows(packedRows, { start, length: range.length });
    if (packedTarget.size > 0) x.device.kernels.copy(packedTarget, sourceRows);
    start += range.length;
  }
  return packedRows;
}

/**
 * Returns whether rows are contiguous in memory, so that they need not be copied: one range of a single plane, or all
 * rows.
 */
function areContiguous(x: Tensor, ranges: readonly RowRange[], dtype: DType): boolean {
  if (ranges.length !== 1 || x.dtype !== dtype || !x.isContiguous) return false;
  const { shape } = x;
  if (ranges[0]!.length === shape.at(-2)) return true;
  for (let axis = 0; axis < shape.length - 2; axis++) if (shape[axis] !== 1) return false;
  return true;
}

/**
 * A batch of messages. Sends are packed if necessary. Packed tensors are disposed right after posting, because the
 * engine retains their memory.
 */
class TransferBatch {
  readonly #messages: RowTransfer[] = [];
  readonly #packedTensors: Tensor[] = [];

  // oxlint-disable-next-line max-params -- to whom, of what, which rows, as what
  send(receiver: number, x: Tensor, ranges: readonly RowRange[], dtype: DType = x.dtype): void {
    if (areContiguous(x, ranges, dtype)) {
      this.#messages.push({ tensor: x, rows: ranges[0]!, peer: receiver, isSend: true });
      return;
    }
    const tensor = copyRows(x, ranges, dtype);
    this.#packedTensors.push(tensor);
    this.#messages.push({ tensor, rows: undefined, peer: receiver, isSend: true });
  }

  /** Forwards a message that an earlier batch of the operation receives. */
  forward(receiver: number, { tensor, rows }: MessageRows): void {
    this.#messages.push({ tensor, rows, peer: receiver, isSend: true });
  }

  receive(sender: number, tensor: Tensor, rows?: RowRange): MessageRows {
    const message = { tensor, rows, peer: sender, isSend: false };
    this.#messages.push(message);
    return message;
  }

  post({ post }: GroupCastContext, operationCode: number): Work {
    const work = post(this.#messages, operationCode);
    for (const tensor of this.#packedTensors) tensor[Symbol.dispose]();
    return work;
  }
}

/**
 * Work with an epilogue of kernels that runs when it is waited for. Until then it owns the tensors that the kernels
 * need.
 */
class WorkWithEpilogue implements Work {
  readonly #works: readonly Work[];
  readonly #tracker: TensorTracker;
  readonly #onComplete: () => void;
  #isComplete = false;

  constructor(works: readonly Work[], tracker: TensorTracker, onComplete: () => void) {
    this.#works = works;
    this.#tracker = tracker;
    this.#onComplete = onComplete;
  }

  wait(): void {
    if (this.#isComplete) return;
    this.#isComplete = true;
    try {
      for (const work of this.#works) work.wait();
      track(this.#tracker, this.#onComplete);
    } finally {
      this.#tracker.release();
    }
  }
}

type MessageRows = Pick<RowTransfer, "tensor" | "rows">;

/** Rows that arrive in one message per tensor, and their destinations in `out`. */
interface ReceivedTensors {
  readonly messages: readonly MessageRows[];
  /**
   * For each tensor, views of the destination rows; empty if the rows are received in place. `out` may be disposed
   * before the work is waited for, because the views retain its memory.
   */
  readonly outViews: readonly (readonly Tensor[])[];
}

/**
 * Sends rows to their receivers, and places the received rows when the work is waited for. A second hop is posted right
 * after the first. Like any collective, it begins when the previous one is done. It forwards whole messages, so that no
 * kernel is needed in between.
 */
export function groupCastRows(
  context: GroupCastContext,
  { out, input }: GroupCastOperands,
  route: GroupCastRoute,
): Work {
  const { sends, receives, forwardedRows } = route;
  const tracker = new TensorTracker();
  return track(tracker, () => {
    const firstHop = new TransferBatch();
    for (const { peer, ranges } of sends) for (const x of input) firstHop.send(peer, x, ranges);
    const receivedTensors = receives.map(({ sender, destinations }) =>
      receiveRows(firstHop, out, sender, destinations),
    );
    const works = [firstHop.post(context, forwardedRows ? 1 : 0)];
    if (forwardedRows) {
      const secondHop = new TransferBatch();
      for (const [i, { forwardReceivers }] of receives.entries())
        for (const receiver of forwardReceivers)
          for (const message of receivedTensors[i]!.messages) secondHop.forward(receiver, message);
      for (const { sender, destinations: outRanges } of forwardedRows)
        receivedTensors.push(receiveRows(secondHop, out, sender, outRanges));
      works.push(secondHop.post(context, 2));
    }
    const unplacedTensors = receivedTensors.filter(({ outViews }) => outViews.some((each) => each.length > 0));
    return new WorkWithEpilogue(works, tracker, () => unplacedTensors.forEach(placeRows));
  });
}

// oxlint-disable-next-line max-params -- by which batch, of what, from whom, and where to
function receiveRows(
  batch: TransferBatch,
  out: readonly Tensor[],
  sender: number,
  ranges: readonly RowRange[],
): ReceivedTensors {
  const messages: MessageRows[] = [];
  const outViews = out.map((x) => {
    const isInPlace = areContiguous(x, ranges, x.dtype);
    messages.push(
      isInPlace ? batch.receive(sender, x, ranges[0]) : batch.receive(sender, allocateRows(x, countRows(ranges))),
    );
    return isInPlace ? [] : ranges.map((range) => viewRows(x, range));
  });
  return { messages, outViews };
}

function placeRows({ messages, outViews }: ReceivedTensors): void {
  for (const [i, { tensor }] of messages.entries()) {
    let start = 0;
    for (const outView of outViews[i]!) {
      if (outView.size === 0) continue;
      const length = outView.shape.at(-2)!;
      using rows = viewRows(tensor, { start, length });
      outView.device.kernels.copy(outView, rows);
      start += length;
    }
  }
}

/**
 * Sends the rows that a groupCast received back to their owners, and adds the rows that arrive to `out` in rank order
 * when the work is waited for.
 */
export function groupReduceRows(
  context: GroupCastContext,
  { out, input, cast }: GroupCastOperands,
  wireDType: DType = "float32",
): Work {
  const tracker = new TensorTracker();
  return track(tracker, () => {
    const batch = new TransferBatch();
    for (const { peer, ranges } of inRingOrder(locateReceivedRows(cast), context.group.rank))
      for (const x of input) batch.send(peer, x, ranges, wireDType);
    const rows = cast.sends.reduce((total, { ranges }) => total + countRows(ranges), 0);
    const partialsByTensor = out.map((x) => new ReceivedPartials(x, rows, wireDType));
    for (const { peer, ranges } of cast.sends)
      for (const tensorPartials of partialsByTensor) tensorPartials.receive(batch, peer, ranges);
    return new WorkWithEpilogue([batch.post(context, wireDType === "float32" ? 0 : 1)], tracker, () => {
      for (const tensorPartials of partialsByTensor) tensorPartials.add();
    });
  });
}

/**
 * The partial sums received for one tensor. They are consecutive in one buffer, each in the layout of its message, in
 * the order in which they are added.
 */
class ReceivedPartials {
  readonly #sum: Tensor;
  /** A matrix of rows. The planes of a partial are consecutive. */
  readonly #receiveBuffer: Tensor | undefined;
  readonly #planeCount: number;
  readonly #ranges: (readonly RowRange[])[] = [];
  #rowCount = 0;

  // oxlint-disable-next-line max-params -- of what, how many rows come, as what
  constructor(out: Tensor, rows: number, wire: DType) {
    this.#planeCount = out.shape.slice(0, -2).reduce((product, length) => product * length, 1);
    this.#sum = out.view({});
    if (rows > 0) this.#receiveBuffer = out.device.empty([rows * this.#planeCount, out.shape.at(-1)!], wire);
  }

  /** Receives the rows of one rank. */
  receive(batch: TransferBatch, sender: number, ranges: readonly RowRange[]): void {
    const length = countRows(ranges) * this.#planeCount;
    batch.receive(sender, this.#receiveBuffer!, { start: this.#rowCount, length });
    this.#ranges.push(ranges);
    this.#rowCount += length;
  }

  /** Adds the received partials rank by rank. */
  add(): void {
    const { kernels } = this.#sum.device;
    if (!this.#receiveBuffer || this.#receiveBuffer.size === 0) return;
    let partialStart = 0;
    let lastTarget: { readonly range: RowRange; readonly targetRows: Tensor } | undefined;
    for (const ranges of this.#ranges) {
      const rows = countRows(ranges);
      let start = 0;
      for (const range of ranges) {
        // Reuses the view, because many ranks return the same rows.
        if (lastTarget?.range.start !== range.start || lastTarget.range.length !== range.length) {
          lastTarget?.targetRows[Symbol.dispose]();
          lastTarget = { range, targetRows: viewRows(this.#sum, range) };
        }
        using partialRows = this.#partialRows(partialStart, rows, { start, length: range.length });
        kernels.binary("add", lastTarget.targetRows, lastTarget.targetRows, partialRows);
        start += range.length;
      }
      partialStart += rows * this.#planeCount;
    }
    lastTarget?.targetRows[Symbol.dispose]();
    this.#receiveBuffer[Symbol.dispose]();
  }

  /**
   * Returns a view of some rows of the partial that begins at row `partialStart` of the buffer, with the shape of the
   * sum's rows.
   */
  // oxlint-disable-next-line max-params -- of which part, how long it is, and which rows
  #partialRows(partialStart: number, rows: number, { start, length }: RowRange): Tensor {
    const shape = this.#sum.shape.with(-2, length);
    const width = shape.at(-1)!;
    const strides = contiguousStrides(shape.with(-2, rows));
    return this.#receiveBuffer!.view({
      shape,
      strides,
      offset: this.#receiveBuffer!.offset + (partialStart + start) * width,
    });
  }
}
