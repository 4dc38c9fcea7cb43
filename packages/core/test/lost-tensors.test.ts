import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { expect, test } from "vitest";
import { zeros } from "../src/creation.ts";
import { square } from "../src/ops/pointwise.ts";
import { ReferenceDevice } from "./reference/index.ts";

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

/** Drops tensors, including one with a tape, without disposing them. */
function loseTensors(device: ReferenceDevice): void {
  const x = zeros(device, [100]);
  x.requiresGrad = true;
  square(square(x));
  device.flush();
}

test("memory of undisposed tensors is freed by garbage collection", async () => {
  const device = new ReferenceDevice();
  loseTensors(device);
  expect(device.memory().allocated).toBe(1200);
  for (let attempt = 0; attempt < 50 && device.memory().allocated > 0; attempt++) {
    collectGarbage();
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(device.memory().allocated).toBe(0);
});
