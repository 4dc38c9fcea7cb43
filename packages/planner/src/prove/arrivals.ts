import type { StridedLayout } from "../symbolic/strided-layout.ts";
import type { PostedBatch } from "./batch.ts";
import { createBox, isDense } from "./box.ts";
import { type Content, Region, rowWidth, toContent } from "./content.ts";
import { type PositionRange, PositionList } from "./positions.ts";
import { isInputRow } from "./values.ts";

/** Writes a message into a storage, replacing what a dense view of it held. */
type WriteMessage = (storage: number, layout: StridedLayout, message: Content) => void;

/** Maximum number of open runs. A batch mostly fills k and v alternately. */
const MAX_OPEN_RUNS = 4;

/**
 * Places the messages of a batch that has arrived. A rank may receive thousands at once that are adjacent in few
 * storages. Adjacent messages are written as one, and rows of an input from several ranks become one region.
 */
export function writeMessages(batch: PostedBatch, writeMessage: WriteMessage): void {
  const runs: MessageRun[] = [];
  const writeRun = (run: MessageRun): void => writeMessage(run.storage, run.layout, run.content());
  for (let i = 0; i < batch.viewCount; i++) {
    if (batch.isSend(i)) continue;
    const storage = batch.storageId(i);
    let runIndex = 0;
    while (runIndex < runs.length && runs[runIndex]!.storage !== storage) runIndex++;
    let run = runs[runIndex];
    if (run?.end !== batch.low(i)) {
      // Messages that are not adjacent are written in order.
      if (run) writeRun(runs.splice(runIndex, 1)[0]!);
      else if (runs.length === MAX_OPEN_RUNS) writeRun(runs.shift()!);
      runs.push((run = new MessageRun(storage, batch.layout(i))));
    }
    run.append(batch, i);
  }
  for (const run of runs) writeRun(run);
}

/** Messages that are adjacent in a storage. */
class MessageRun {
  readonly storage: number;
  /** Offset at which the next message must begin. */
  end: number;
  readonly #firstLayout: StridedLayout;
  readonly #regions: Region[] = [];
  #rows: RowRun | undefined;

  constructor(storage: number, first: StridedLayout) {
    this.storage = storage;
    this.#firstLayout = first;
    this.end = first.low;
  }

  /** Layout of one view that covers all its messages. */
  get layout(): StridedLayout {
    const { low, high } = this.#firstLayout;
    return this.end === high ? this.#firstLayout : denseLayout(low, this.end);
  }

  append(batch: PostedBatch, i: number): void {
    const offset = this.end - this.#firstLayout.low;
    this.end = batch.high(i);
    const content = batch.source(i);
    const low = batch.sourceStart(i);
    const high = low + batch.size(i);
    if (content instanceof Region) {
      if (isRowRange(content, low, high)) return this.#appendRows(content, { low, high, offset });
      const range = content.rowRange(low, high, offset);
      if (range) return this.#appendRegions([range]);
    }
    this.#appendRegions(content.range(low, high).shiftedRegions(offset));
  }

  /** Returns the contents of its messages, relative to the first element. */
  content(): Content {
    this.#closeRows();
    return toContent(this.#regions);
  }

  #appendRegions(regions: readonly Region[]): void {
    this.#closeRows();
    for (const region of regions) this.#regions.push(region);
  }

  #appendRows(region: Region, range: { readonly low: number; readonly high: number; readonly offset: number }): void {
    let rows = this.#rows;
    if (!rows?.isContinuedBy(region, range.offset)) {
      this.#closeRows();
      this.#rows = rows = new RowRun(region, range.offset);
    }
    rows.append(region, range.low, range.high);
  }

  #closeRows(): void {
    if (this.#rows) this.#regions.push(this.#rows.region());
    this.#rows = undefined;
  }
}

/**
 * Whether a range of elements consists of whole rows of an input that are stored row by row, each with all its
 * sequences, heads and columns.
 */
function isRowRange({ value, box }: Region, low: number, high: number): boolean {
  if (!isInputRow(value) || low < box.low || high > box.high || low >= high || !isDense(box)) return false;
  const width = rowWidth(box);
  return box.strides[2] === width && (low - box.low) % width === 0 && (high - box.low) % width === 0;
}

/** Merges the regions of consecutive rows. Regions are in memory order. */
export function mergeRows(regions: readonly Region[]): readonly Region[] {
  const merged: Region[] = [];
  let run: RowRun | undefined;
  for (const region of regions) {
    const { low, high } = region.box;
    const isRowRun = isRowRange(region, low, high);
    if (run && (!isRowRun || !run.isContinuedBy(region, low))) {
      merged.push(run.region());
      run = undefined;
    }
    if (!isRowRun) merged.push(region);
    else (run ??= new RowRun(region, low)).append(region, low, high);
  }
  if (run) merged.push(run.region());
  return merged;
}

/** Rows of an input that are adjacent in memory and have the same sequences, heads and columns. */
class RowRun {
  readonly #first: Region;
  readonly #offset: number;
  readonly #ranges: PositionRange[] = [];
  #numRows = 0;

  constructor(first: Region, offset: number) {
    this.#first = first;
    this.#offset = offset;
  }

  isContinuedBy({ value, rows, box }: Region, offset: number): boolean {
    const { value: firstValue, rows: firstRows, box: firstBox } = this.#first;
    if (value !== firstValue || offset !== this.#offset + this.#numRows * rowWidth(firstBox)) return false;
    if (rows.batch !== firstRows.batch || rows.head !== firstRows.head || rows.column !== firstRows.column)
      return false;
    return [0, 1, 3].every(
      (axis) => box.sizes[axis] === firstBox.sizes[axis] && box.strides[axis] === firstBox.strides[axis],
    );
  }

  append({ rows: { positions }, box }: Region, low: number, high: number): void {
    const width = rowWidth(box);
    const [first, count] = [(low - box.low) / width, (high - low) / width];
    this.#ranges.push({ positions, first, count });
    this.#numRows += count;
  }

  region(): Region {
    const { value, rows, box } = this.#first;
    const positions = PositionList.concatenate(this.#ranges);
    return new Region(
      value,
      { ...rows, positions },
      createBox(this.#offset, box.sizes.with(2, this.#numRows), box.strides),
    );
  }
}

/** Returns the layout of contiguous elements, as messages have it. */
function denseLayout(low: number, high: number): StridedLayout {
  const size = high - low;
  const box = createBox(low, [1, 1, 1, size], [size, size, size, 1]);
  return { shape: [size], strides: [1], offset: low, size, isDense: true, low, high, box };
}
