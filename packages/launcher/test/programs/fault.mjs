// One rank of a job with a fault: `fault.mjs <fault> [failing rank]`. The other ranks wait forever.
import { spawn } from "node:child_process";
import { once } from "node:events";
import process from "node:process";

const [faultNames, culprit = "1"] = process.argv.slice(2);
const rank = process.env.RANK;
const waitForever = () => new Promise(() => setInterval(() => {}, 60_000));

class PeerLostError extends Error {
  name = "PeerLostError";
}

const faults = {
  async throws() {
    throw new TypeError("bad loss", { cause: new Error("the weights are NaN") });
  },
  async rejects() {
    void Promise.reject(new RangeError("nobody catches this"));
    await waitForever();
  },
  async exits() {
    console.error("the last words of this rank");
    process.exit(42);
  },
  async "is-killed"() {
    process.kill(process.pid, "SIGKILL");
    await waitForever();
  },
  async segfaults() {
    process.kill(process.pid, "SIGSEGV");
    await waitForever();
  },
  async aborts() {
    process.abort();
  },
  async "fills-heap"() {
    const buffers = [];
    for (;;) buffers.push(Array.from({ length: 1000 }, Math.random));
  },
  async unsettled() {
    await new Promise(() => {});
  },
  async "throws-text"() {
    // oxlint-disable-next-line no-throw-literal
    throw "just text";
  },
  async "port-taken"() {
    const { createServer } = await import("node:net");
    createServer().listen(Number(process.env.MASTER_PORT), "127.0.0.1");
    await waitForever();
  },
  async "escapes-then-throws"() {
    await spawnEscapee();
    throw new Error("after the escape");
  },
  async "floods-then-throws"() {
    const line = "x".repeat(99);
    for (let i = 0; i < 50_000; i++) console.log(line);
    console.log("the last of the flood");
    throw new Error("after the flood");
  },
  async "exits-early"() {},
};

/** Starts a grandchild in a separate session, which holds the rank's output open. */
async function spawnEscapee() {
  const child = spawn(process.execPath, ["-e", 'console.log("escaped"); setInterval(() => {}, 60_000)'], {
    detached: true,
    stdio: ["ignore", "inherit", "inherit"],
  });
  await once(child, "spawn");
  child.unref();
}

const bystanders = {
  "ignores-sigterm": () => {
    process.on("SIGTERM", () => console.log(`rank ${rank} received SIGTERM and stays`));
  },
  // The launcher's store outlives a rank, so that the loss is reported here in the same way as by collectives.
  "loses-peer": () => {
    process.on("SIGTERM", () => {
      throw new PeerLostError("rank 1 is gone");
    });
  },
};

/** Waits for all ranks, so that all have reached the state that the test requires when the fault occurs. */
async function joinBarrier() {
  const { connectStore } = await import(process.env.TEST_INDEX);
  const store = await connectStore();
  await store.barrier("all ranks joined", Number(process.env.WORLD_SIZE));
}

const [fault, bystander] = faultNames.split("+");
if (rank === culprit) {
  await joinBarrier();
  await faults[fault]();
} else {
  bystanders[bystander]?.();
  await joinBarrier();
  if (fault === "exits-early") console.log(`rank ${rank} goes on`);
  else await waitForever();
}
