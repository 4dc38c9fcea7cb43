import type { ReduceOp, Transfer } from "../../collectives.ts";
import { type DType, dtypeBytes } from "../../dtype.ts";
import type { Tensor } from "../../tensor.ts";

// In the order of the enums of native code.
const operations = ["sendRecv", "allGather", "reduceScatter", "allReduce", "allToAll", "broadcast", "barrier"] as const;
const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];
const reductions: readonly ReduceOp[] = ["sum", "mean", "max"];
const noDType = dtypes.length;

export type Operation = (typeof operations)[number];

/** A collective's arguments, checked. Counts are in elements. */
export interface Call {
  readonly op: Operation;
  readonly out?: Tensor;
  readonly input?: Tensor;
  readonly reduce?: ReduceOp;
  readonly root?: number;
  /** Shares differ from rank to rank, so shapes may too. */
  readonly ragged?: boolean;
  readonly send?: readonly number[];
  readonly receive?: readonly number[];
  readonly transfers?: readonly Transfer[];
}

export function isReduceOp(op: string): op is ReduceOp {
  return (reductions as readonly string[]).includes(op);
}

/** Where a contiguous tensor's first element lies. */
function addressOf(x: Tensor | undefined): number {
  return x ? Number(x.storage.handle) + x.offset * dtypeBytes[x.dtype] : 0;
}

/** A call as native code reads it: numbers, lists preceded by their length. */
export function encode(call: Call): Float64Array {
  const { input, out, send = [], receive = [], transfers = [] } = call;
  const shown = input ?? out;
  const words = [
    operations.indexOf(call.op),
    shown ? dtypes.indexOf(shown.dtype) : noDType,
    reductions.indexOf(call.reduce ?? "sum"),
    call.root ?? 0,
    call.ragged ? 1 : 0,
    addressOf(out),
    addressOf(input),
  ];
  const list = (values: readonly number[]) => words.push(values.length, ...values);
  list(shown?.shape ?? []);
  list(send);
  list(receive);
  words.push(transfers.length);
  for (const transfer of transfers) {
    const { tensor } = transfer;
    words.push("to" in transfer ? 1 : 0, "to" in transfer ? transfer.to : transfer.from);
    words.push(addressOf(tensor), dtypes.indexOf(tensor.dtype));
    list(tensor.shape);
  }
  return Float64Array.from(words);
}
