import { type Device, Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { ArgumentBuffer, NativeStorage } from "../src/index.ts";
import { type PostedCollective, recordPendingAccess } from "../src/pending-accesses.ts";

const owner = { reclaim() {} };
const device = { type: "fake", index: 0 } as Device;
const BYTES = 400;

const createStorage = (): NativeStorage => new NativeStorage(owner, { address: 64, id: 0, byteLength: BYTES }, BYTES);
const createCollective = (number: number, order = { orderedNumber: 0 }): PostedCollective => ({
  ...{ number, order, op: "allReduce" as const, sequence: number, group: "world", label: "" },
});

function view(storage: NativeStorage, offset: number, shape: number[], strides: number[] = [1]): Tensor {
  return new Tensor({ device, dtype: "float32", storage, shape, strides, offset });
}

function use(x: Tensor, isMutated = false): void {
  new ArgumentBuffer({ bind() {} }).begin(owner, 4096, "add").view(x, isMutated);
}

/** Returns the positions of a view's elements. */
function positions({ shape, strides, offset }: Tensor): number[] {
  return shape.reduce(
    (starts, length, axis) => starts.flatMap((start) => Array.from({ length }, (_, i) => start + i * strides[axis]!)),
    [offset],
  );
}

test("a view is rejected exactly if one of its elements is in flight", () => {
  const geometries = [
    [
      [3, 4],
      [7, 1],
    ],
    [
      [4, 3],
      [1, 7],
    ],
    [
      [2, 3, 2],
      [40, 9, 2],
    ],
    [
      [2, 1, 3],
      [31, 5, 6],
    ],
    [
      [3, 5],
      [0, 4],
    ],
    [
      [2, 2, 2, 2],
      [3, 40, 17, 1],
    ],
    [
      [3, 3],
      [2, 3],
    ],
    [
      [2, 0],
      [4, 1],
    ],
    [[], []],
  ] as const;
  let [numRejected, numAccepted] = [0, 0];
  for (const [shape, strides] of geometries) {
    for (let start = 0; start < 80; start++) {
      for (const length of [1, 2, 5, 20]) {
        const storage = createStorage();
        recordPendingAccess(view(storage, start, [length]), { collective: createCollective(1), isWrite: true });
        const x = view(storage, 2, [...shape], [...strides]);
        const isInFlight = positions(x).some((position) => position >= start && position < start + length);
        if (isInFlight) expect(() => use(x)).toThrow("allReduce #1 (world) is writing");
        else use(x);
        if (isInFlight) numRejected++;
        else numAccepted++;
      }
    }
  }
  expect(numRejected).toBeGreaterThan(500);
  expect(numAccepted).toBeGreaterThan(500);
});

test("consecutive rows of a batch are recorded as one access", () => {
  const storage = createStorage();
  const collective = createCollective(1);
  for (let row = 2; row < 12; row++) recordPendingAccess(view(storage, 4 * row, [4]), { collective, isWrite: true });
  expect(storage.pendingAccesses).toHaveLength(1);
  use(view(storage, 0, [8]));
  expect(() => use(view(storage, 47, [1]))).toThrow("is writing");
  use(view(storage, 48, [8]));
});

test("accesses that are over are removed at the next use and at the next collective", () => {
  const storage = createStorage();
  const order = { orderedNumber: 0 };
  const x = view(storage, 0, [4]);
  recordPendingAccess(x, { collective: createCollective(1, order), isWrite: true });
  order.orderedNumber = 1;
  recordPendingAccess(x, { collective: createCollective(2, order), isWrite: false });
  expect(storage.pendingAccesses).toHaveLength(1);
  use(x);
  expect(() => use(x, true)).toThrow("allReduce #2 (world) is reading");
  order.orderedNumber = 2;
  use(x, true);
  expect(storage.pendingAccesses).toBeUndefined();
});

test("memory that another storage adopts stays in flight there, and released memory is not in flight", () => {
  const [storage, source] = [createStorage(), createStorage()];
  const x = view(storage, 0, [4]);
  recordPendingAccess(x, { collective: createCollective(1), isWrite: true });
  storage.releaseMemory();
  expect(storage.pendingAccesses).toBeUndefined();
  recordPendingAccess(view(source, 0, [2]), { collective: createCollective(2), isWrite: true });
  storage.adoptMemory(source);
  expect(source.pendingAccesses).toBeUndefined();
  expect(() => use(x)).toThrow("allReduce #2 (world) is writing");
  use(view(storage, 2, [2]));
});
