import { connect } from "node:net";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { connectStore, type Store } from "../src/store/client.ts";
import { encodeFrame, FrameReader, STORE_LIMITS } from "../src/store/protocol.ts";
import { StoreServer } from "../src/store/server.ts";
import { StoreTable } from "../src/store/table.ts";

let server: StoreServer;
let clients: Store[];
const RUN = "run-1";

beforeEach(async () => {
  server = await StoreServer.listen({ runId: RUN });
  clients = [];
});
afterEach(async () => {
  for (const client of clients) await client.close();
  await server.close();
});

async function connectClient(overrides: { token?: string; runId?: string; attempt?: number } = {}): Promise<Store> {
  const client = await connectStore({
    address: server.address,
    token: server.token,
    runId: RUN,
    attempt: 0,
    ...overrides,
  });
  clients.push(client);
  return client;
}

/** Sends raw bytes. Resolves to all data that the server sends until it closes the connection. */
function sendRaw(bytes: Buffer): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(server.port, "127.0.0.1", () => socket.write(bytes));
    let reportedError = "";
    socket.on("data", (chunk) => (reportedError += chunk.toString()));
    socket.on("error", reject);
    socket.on("close", () => resolve(reportedError));
  });
}

describe("store", () => {
  it("sets, gets, overwrites and deletes bytes", async () => {
    const store = await connectClient();
    expect(await store.get("k")).toBeUndefined();
    await store.set("k", Uint8Array.of(0, 255, 10));
    expect(await store.get("k")).toEqual(Buffer.from([0, 255, 10]));
    await store.set("k", "");
    expect(await store.get("k")).toEqual(Buffer.alloc(0));
    expect(await store.delete("k")).toBe(true);
    expect(await store.delete("k")).toBe(false);
    expect(await store.get("k")).toBeUndefined();
  });

  it("adds to counters, and returns a different number to each caller", async () => {
    const stores = await Promise.all(Array.from({ length: 5 }, () => connectClient()));
    const sums = await Promise.all(stores.flatMap((store) => [store.add("n"), store.add("n")]));
    expect(sums.toSorted((a, b) => a - b)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    expect(String(await stores[0]?.get("n"))).toBe("10");
    expect(await stores[0]?.add("n", -12)).toBe(-2);
    for (const value of ["words", "1e3", " 5", "", `${Number.MAX_SAFE_INTEGER}`]) {
      await stores[0]?.set("n", value);
      await expect(stores[0]?.add("n"), value).rejects.toMatchObject({ code: "REQUEST" });
      expect(String(await stores[0]?.get("n"))).toBe(value);
    }
  });

  it("compares and sets: one of several callers succeeds, and the others receive the current value", async () => {
    const stores = await Promise.all(Array.from({ length: 4 }, () => connectClient()));
    const outcomes = await Promise.all(stores.map((store, i) => store.compareAndSet("leader", undefined, `r${i}`)));
    expect(outcomes.filter(({ swapped }) => swapped)).toHaveLength(1);
    expect(new Set(outcomes.map(({ current }) => String(current))).size).toBe(1);
    const current = String(outcomes[0]?.current);
    expect(await stores[0]?.compareAndSet("leader", "nobody", "x")).toEqual({
      swapped: false,
      current: Buffer.from(current),
    });
    expect((await stores[0]?.compareAndSet("leader", current, ""))?.swapped).toBe(true);
    expect((await stores[0]?.compareAndSet("leader", "", "again"))?.swapped).toBe(true);
    expect(await stores[0]?.compareAndSet("none", "x", "y")).toEqual({ swapped: false, current: undefined });
  });

  it("waits for keys, and names the missing ones at a timeout", async () => {
    const [a, b] = [await connectClient(), await connectClient()];
    const bothKeysPromise = a.wait(["x", "y", "x"]);
    const valuePromise = a.waitFor("y");
    await b.set("x", "1");
    await b.set("y", "2");
    await bothKeysPromise;
    expect(String(await valuePromise)).toBe("2");
    await expect(a.wait(["x", "z"], { timeoutMs: 5 })).rejects.toThrow(/timed out after 5 ms: wait: missing keys: z$/);
    await expect(a.waitFor("z", { timeoutMs: 0 })).rejects.toMatchObject({ code: "TIMEOUT" });
  });

  it("serves a client after the timeouts of its completed waits have passed", async () => {
    const [store, other] = [await connectClient(), await connectClient()];
    const waits = [store.waitFor("x", { timeoutMs: 30 }), store.barrier("b", 2, { timeoutMs: 30 })];
    await Promise.all([other.set("x", "1"), other.barrier("b", 2), ...waits]);
    await Promise.all([store.waitFor("x", { timeoutMs: 30 }), store.wait(["x"], { timeoutMs: 30 })]);
    await expect(other.waitFor("y", { timeoutMs: 60 })).rejects.toMatchObject({ code: "TIMEOUT" });
    expect(String(await store.get("x"))).toBe("1");
  });

  it("holds repeated barriers until all members arrive, and reports those that did at a timeout", async () => {
    const stores = await Promise.all(Array.from({ length: 3 }, () => connectClient()));
    for (let step = 0; step < 3; step++) await Promise.all(stores.map((store) => store.barrier("b", 3)));
    const earlyArrivals = stores
      .slice(1)
      .map((store, i) => store.barrier("late", 3, { member: `${2 * i}`, timeoutMs: 40 }));
    const results = await Promise.allSettled(earlyArrivals);
    const messages = results.map((result) => (result.status === "rejected" ? String(result.reason) : "released"));
    expect(messages[0]).toMatch(/barrier "late": 2 of 3 arrived \(0, 2\)/);
    await Promise.all(stores.map((store) => store.barrier("late", 3)));
    await expect(stores[0]?.barrier("late", 3, { timeoutMs: 1 })).rejects.toThrow(/barrier "late": 1 of 3 arrived$/);
    await expect(stores[0]?.barrier("b", 0)).rejects.toMatchObject({ code: "REQUEST" });
  });

  it("withdraws the arrival of a client that disconnected", async () => {
    const [a, b, c] = [await connectClient(), await connectClient(), await connectClient()];
    const lostError = a.barrier("b", 2).catch((error: unknown) => error);
    await a.close();
    expect(await lostError).toMatchObject({ code: "CLOSED" });
    // A barrier with count 1 is rejected until the server has withdrawn the arrival at the barrier with count 2.
    await vi.waitFor(() => b.barrier("b", 1), { interval: 1 });
    await Promise.all([b.barrier("b", 2), c.barrier("b", 2)]);
  });

  it("replies to other requests while one waits on the same connection", async () => {
    const store = await connectClient();
    const waitPromise = store.waitFor("later");
    await store.set("now", "1");
    expect(String(await store.get("now"))).toBe("1");
    await store.set("later", "2");
    expect(String(await waitPromise)).toBe("2");
  });

  it("replies to concurrent requests for more bytes than it keeps for a slow client", async () => {
    const [store, other] = [await connectClient(), await connectClient()];
    const keys = Array.from({ length: 12 }, (_, i) => `k${i}`);
    const createValue = (i: number): Buffer => Buffer.alloc(STORE_LIMITS.value, i);
    for (const [i, key] of keys.entries()) await store.set(key, createValue(i));
    const values = await Promise.all(keys.map((key) => other.get(key)));
    for (const [i, value] of values.entries()) expect(value?.equals(createValue(i)), `value ${i}`).toBe(true);
    await expect(other.get("absent")).resolves.toBeUndefined();
  });

  it("waits indefinitely with an infinite timeout", async () => {
    const [a, b] = [await connectClient(), await connectClient()];
    vi.useFakeTimers({ toFake: ["setTimeout"] });
    const waitPromise = a.waitFor("later", { timeoutMs: Number.POSITIVE_INFINITY });
    await a.get("sent after it: the server has received both");
    vi.advanceTimersByTime(2 * STORE_LIMITS.defaultTimeoutMs);
    vi.useRealTimers();
    await b.set("later", "1");
    expect(String(await waitPromise)).toBe("1");
  });

  it("behaves as a map under any sequence of operations", async () => {
    const store = await connectClient();
    const key = fc.constantFrom("a", "b", "ключ");
    const step = fc.oneof(
      fc.record({ op: fc.constant("set" as const), key, value: fc.uint8Array({ maxLength: 300 }) }),
      fc.record({ op: fc.constant("delete" as const), key }),
      fc.record({ op: fc.constant("get" as const), key }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
        const model = new Map<string, Uint8Array>();
        for (const name of ["a", "b", "ключ"]) await store.delete(name);
        for (const operation of steps) {
          if (operation.op === "set") await store.set(operation.key, operation.value);
          if (operation.op === "set") model.set(operation.key, operation.value);
          if (operation.op === "delete") expect(await store.delete(operation.key)).toBe(model.delete(operation.key));
          const expected = model.get(operation.key);
          expect(await store.get(operation.key)).toEqual(expected === undefined ? undefined : Buffer.from(expected));
        }
      }),
      { numRuns: 40 },
    );
  });
});

describe("store admission and limits", () => {
  it("rejects a wrong token, run, attempt or first frame", async () => {
    await expect(connectClient({ token: "0".repeat(64) })).rejects.toMatchObject({ code: "AUTH" });
    await expect(connectClient({ token: "" })).rejects.toMatchObject({ code: "AUTH" });
    await expect(connectClient({ runId: "other" })).rejects.toMatchObject({ code: "MISMATCH" });
    await expect(connectClient({ attempt: 1 })).rejects.toMatchObject({ code: "MISMATCH" });
    expect(await sendRaw(encodeFrame({ id: 0, op: "get", key: "k" }))).toMatch(/expected a hello frame first/);
    expect(await sendRaw(Buffer.from("GET / HTTP/1.1\r\n\r\n"))).toMatch(/exceeds the limit/);
  });

  it("gives every attempt its own keys, and disconnects the ranks of the previous attempt", async () => {
    const oldClient = await connectClient();
    await oldClient.set("k", "old");
    const stuckRequest = oldClient.waitFor("never");
    server.beginAttempt(1);
    await expect(stuckRequest).rejects.toMatchObject({ code: "CLOSED" });
    await expect(oldClient.get("k")).rejects.toMatchObject({ code: "CLOSED" });
    const newClient = await connectClient({ attempt: 1 });
    expect(await newClient.get("k")).toBeUndefined();
    await expect(connectClient({ attempt: 0 })).rejects.toMatchObject({ code: "MISMATCH" });
  });

  it("enforces the limits on the sizes of keys and values and on the number of keys", async () => {
    const store = await connectClient();
    const value = Buffer.alloc(STORE_LIMITS.value, 7);
    await store.set("k".repeat(STORE_LIMITS.key), value);
    expect((await store.get("k".repeat(STORE_LIMITS.key)))?.equals(value)).toBe(true);
    for (const size of [STORE_LIMITS.value + 1, 2 * STORE_LIMITS.value + 1])
      await expect(store.set("big", Buffer.alloc(size))).rejects.toMatchObject({ code: "LIMIT" });
    await expect(store.wait(["k".repeat(STORE_LIMITS.header)])).rejects.toMatchObject({ code: "LIMIT" });
    await expect(store.set("k".repeat(STORE_LIMITS.key + 1), "")).rejects.toMatchObject({ code: "LIMIT" });
    await expect(store.set("", "")).rejects.toMatchObject({ code: "REQUEST" });
    const setRequests = Array.from({ length: STORE_LIMITS.keys - 1 }, (_, i) => store.set(`n${i}`, ""));
    await Promise.all(setRequests);
    await expect(store.set("one more", "")).rejects.toMatchObject({ code: "LIMIT" });
    await store.set("n0", "still fine");
    await store.delete("n0");
    await store.set("one more", "");
  });

  it("counts only the current values towards the limit on the total size", () => {
    const table = new StoreTable();
    const value = Buffer.alloc(STORE_LIMITS.value);
    for (let written = 0; written <= STORE_LIMITS.total; written += value.length) table.set("overwritten", value);
    for (let written = 0; written <= STORE_LIMITS.total; written += value.length) {
      table.set("deleted", value);
      expect(table.delete("deleted")).toBe(true);
    }
    expect(table.delete("deleted")).toBe(false);
  });

  it("does not notify a waiter of keys that are set after it has stopped waiting", () => {
    const table = new StoreTable();
    const onReady = vi.fn<() => void>();
    const cancel = table.waitForKeys(["x", "y"], onReady);
    table.set("x", Buffer.alloc(1));
    cancel();
    cancel();
    table.set("y", Buffer.alloc(1));
    expect(onReady).not.toHaveBeenCalled();
    table.waitForKeys(["x", "y"], onReady);
    expect(onReady).toHaveBeenCalledOnce();
  });

  it("notifies the other waiters of a key after one of them has stopped waiting", () => {
    const table = new StoreTable();
    const [onFirstReady, onSecondReady] = [vi.fn<() => void>(), vi.fn<() => void>()];
    const cancel = table.waitForKeys(["x"], onFirstReady);
    table.waitForKeys(["x"], onSecondReady);
    cancel();
    table.set("x", Buffer.alloc(1));
    expect(onFirstReady).not.toHaveBeenCalled();
    expect(onSecondReady).toHaveBeenCalledOnce();
  });

  it("closes a connection that announces a frame beyond the limits", async () => {
    const hello = encodeFrame({ id: 0, op: "hello", version: 1, run: RUN, attempt: 0, token: server.token });
    const oversizedHeader = Buffer.from([0xff, 0xff, 0xff, 0xff]);
    expect(await sendRaw(Buffer.concat([hello, oversizedHeader]))).toMatch(/"ok":true.*PROTOCOL/s);
    const header = Buffer.from(JSON.stringify({ id: 1, op: "set", key: "k", bytes: 2 ** 40 }));
    const length = Buffer.alloc(4);
    length.writeUInt32BE(header.length);
    expect(await sendRaw(Buffer.concat([hello, length, header]))).toMatch(/exceeds the limit/);
    // Before the hello is accepted, the limits are lower.
    const longHello = encodeFrame({ id: 0, op: "hello", run: "r".repeat(STORE_LIMITS.helloHeader) });
    expect(await sendRaw(longHello)).toMatch(/PROTOCOL.*header of \d+ bytes exceeds the limit of 4096 bytes/);
    const helloWithPayload = encodeFrame({ id: 0, op: "hello" }, Buffer.alloc(1));
    expect(await sendRaw(helloWithPayload)).toMatch(/PROTOCOL.*payload of 1 bytes exceeds the limit of 0 bytes/);
  });

  it("closes a connection that sends a request with the id of a pending one", async () => {
    const hello = encodeFrame({ id: 0, op: "hello", version: 1, run: RUN, attempt: 0, token: server.token });
    const request = encodeFrame({ id: 1, op: "get", key: "k", wait: true });
    expect(await sendRaw(Buffer.concat([hello, request, request]))).toMatch(/PROTOCOL.*no pending request, received 1/);
  });

  it("rejects fields of the wrong type and unknown operations, and keeps the connection", async () => {
    const store = await connectClient();
    for (const header of [
      { op: "dance" },
      { op: "set", key: 7 },
      { op: "add", key: "k", delta: 0.5 },
      { op: "wait", keys: "k" },
      { op: "get", key: "k", wait: true, timeout: "soon" },
      { op: "cas", key: "k", expected: 9 },
      { op: "cas", key: "k", expected: -1 },
    ])
      await expect(store.request(header)).rejects.toMatchObject({ code: "REQUEST" });
    await store.set("k", "fine");
  });

  it("does not count a rejected request as an arrival at a barrier", async () => {
    const store = await connectClient();
    await expect(store.barrier("b", 2, { timeoutMs: -1 })).rejects.toMatchObject({ code: "REQUEST" });
    await expect(store.barrier("b", 2, { timeoutMs: 5 })).rejects.toThrow(/1 of 2 arrived/);
  });

  it("reports that the job may have ended when its token file is missing", async () => {
    vi.stubEnv("MOSAIC_TOKEN_FILE", "/nowhere/token");
    const refusedConnection = connectStore({ address: server.address, runId: RUN });
    await expect(refusedConnection).rejects.toMatchObject({
      code: "CLOSED",
      message: expect.stringMatching(/has the job ended/),
    });
    vi.unstubAllEnvs();
  });
});

describe("store frames", () => {
  it("are read from a byte stream that is split at arbitrary positions", () => {
    const frame = fc.record({ key: fc.string(), payload: fc.uint8Array({ maxLength: 200 }) });
    fc.assert(
      fc.property(fc.array(frame, { maxLength: 5 }), fc.array(fc.nat(400), { maxLength: 8 }), (frames, cuts) => {
        const bytes = Buffer.concat(frames.map(({ key, payload }) => encodeFrame({ key }, payload)));
        const reader = new FrameReader();
        const decodedFrames: { key: unknown; payload: Uint8Array }[] = [];
        const edges = [0, ...cuts.map((cut) => Math.min(cut, bytes.length)).toSorted((a, b) => a - b), bytes.length];
        for (let i = 1; i < edges.length; i++)
          for (const { header, payload } of reader.push(bytes.subarray(edges[i - 1], edges[i])))
            decodedFrames.push({ key: header.key, payload: new Uint8Array(payload) });
        expect(decodedFrames).toEqual(frames);
      }),
    );
  });
});
