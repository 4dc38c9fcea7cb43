import { type CollectiveCall, collectiveOps, dtypeBytes, dtypeCodes, reduceOps, type Tensor } from "@mosaic/core";

const noDType = Object.keys(dtypeCodes).length;

/** The address of a contiguous tensor's first element. */
function addressOf(x: Tensor | undefined): number {
  return x ? Number(x.storage.handle) + x.offset * dtypeBytes[x.dtype] : 0;
}

/** A call as native code reads it: numbers, lists preceded by their length. */
export function encode(call: CollectiveCall): Float64Array {
  const { input, out, send = [], receive = [], transfers = [] } = call;
  const described = input ?? out;
  const words = [
    collectiveOps.indexOf(call.op),
    described ? dtypeCodes[described.dtype] : noDType,
    reduceOps.indexOf(call.reduce ?? "sum"),
    call.root ?? 0,
    call.ragged ? 1 : 0,
    addressOf(out),
    addressOf(input),
  ];
  const list = (values: readonly number[]) => words.push(values.length, ...values);
  list(described?.shape ?? []);
  list(send);
  list(receive);
  words.push(transfers.length);
  for (const transfer of transfers) {
    const { tensor } = transfer;
    words.push("to" in transfer ? 1 : 0, "to" in transfer ? transfer.to : transfer.from);
    words.push(addressOf(tensor), dtypeCodes[tensor.dtype]);
    list(tensor.shape);
  }
  return Float64Array.from(words);
}
