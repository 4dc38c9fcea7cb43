// Checkpoints of hosts without a shared file system: each host of these tests has a directory of its own.
import { randomBytes } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { type Context, Linear, type Module, ones, type Tensor } from "@mosaic/core";
import { afterEach, describe, expect, test, vi } from "vitest";
import {
  AdamW,
  type CheckpointOptions,
  FileError,
  findCheckpoint,
  loadCheckpoint,
  saveCheckpoint,
} from "../src/index.ts";
import { receiveFile, sendFile } from "../src/state/file-transfer.ts";
import { computeLossCurve } from "./reference/curve.ts";
import { directory, isOpen } from "./reference/directory.ts";
import { Model, trainStep } from "./reference/model.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

afterEach(() => void vi.unstubAllEnvs());

/** Hosts with one directory each. Ranks are assigned to hosts in contiguous blocks. */
class HostDirectories {
  readonly names: readonly string[];
  readonly #root: string;

  constructor(names: readonly string[], root = directory()) {
    this.names = names;
    this.#root = root;
    for (const name of names) mkdirSync(join(root, name), { recursive: true });
  }

  path(name: string): string {
    return join(this.#root, name, "training.safetensors");
  }

  bytes(name: string): Buffer {
    return readFileSync(this.path(name));
  }

  files(name: string): string[] {
    return readdirSync(join(this.#root, name));
  }

  /** Returns the arguments of a rank, if `size` ranks run on these hosts. */
  getCheckpointCall(ctx: Context, copies: "perHost" | "rank0" = "perHost"): [path: string, options: CheckpointOptions] {
    const host = this.names[Math.floor((ctx.rank * this.names.length) / ctx.size)]!;
    return [this.path(host), { copies, host }];
  }

  /** Returns a subset of the hosts. */
  selectHosts(...names: string[]): HostDirectories {
    return new HostDirectories(names, this.#root);
  }
}

interface Training {
  readonly model: Model;
  readonly optimizer: AdamW;
}

const buildTraining = (ctx: Context): Training => {
  const model = new Model(ctx);
  return { model, optimizer: new AdamW(model, { lr: 2e-2 }) };
};

/**
 * Trains up to a step from the newest checkpoint, if there is one. Saves a checkpoint, and returns the losses since the
 * loaded one.
 */
async function trainTo(
  ctx: Context,
  steps: number,
  hosts: HostDirectories,
  copies?: "perHost" | "rank0",
): Promise<number[]> {
  const training = buildTraining(ctx);
  const [path, options] = hosts.getCheckpointCall(ctx, copies);
  if (await findCheckpoint(ctx, path, options)) await loadCheckpoint(ctx, path, training, options);
  const losses: number[] = [];
  while (training.optimizer.steps < steps) losses.push(await trainStep(ctx, training));
  await saveCheckpoint(ctx, path, { ...training, data: { losses, rank: ctx.rank } }, options);
  return losses;
}

/** Returns the error of each rank, for a body that throws on all ranks. */
async function collectErrors(size: number, body: (ctx: Context) => Promise<unknown>): Promise<Error[]> {
  return onMesh({ sp: size }, async (ctx) => {
    const error = await body(ctx).then(
      () => undefined,
      (each: unknown) => each as Error,
    );
    expect(error).toBeInstanceOf(Error);
    return error!;
  });
}

const values = (model: Module) =>
  Promise.all([...model.stateDict()].map(async ([, each]: [string, Tensor]) => Array.from(await each.read())));

test("each host stores an identical, complete copy, which one rank can load alone", async () => {
  const hosts = new HostDirectories(["n0", "n1"]);
  const [losses] = await onMesh({ sp: 4 }, (ctx) => trainTo(ctx, 2, hosts));
  expect(hosts.bytes("n1")).toEqual(hosts.bytes("n0"));
  for (const name of hosts.names) expect(hosts.files(name)).toEqual(["training.safetensors"]);
  await onOneRank(async (ctx) => {
    const loadedCheckpoint = await loadCheckpoint(ctx, hosts.path("n1"), buildTraining(ctx));
    expect(loadedCheckpoint).toEqual({ steps: 2, data: { losses, rank: 0 } });
  });
});

test.each(["perHost", "rank0"] as const)(
  "%s: a training that resumes on other hosts has the loss curve of an uninterrupted one",
  async (copies) => {
    const hosts = new HostDirectories(["n0", "n1", "n2"]);
    const lossesBefore = await onMesh({ sp: 2 }, (ctx) => trainTo(ctx, 3, hosts.selectHosts("n0", "n1"), copies));
    const lossesAfter = await onMesh({ sp: 2 }, (ctx) => trainTo(ctx, 6, hosts.selectHosts("n2", "n0"), copies));
    expect([...lossesBefore[0]!, ...lossesAfter[0]!]).toEqual(await computeLossCurve([2, 6]));
    expect(lossesAfter[1]).toEqual(lossesAfter[0]);
    const expectedFiles = copies === "perHost" ? ["training.safetensors"] : [];
    expect(hosts.files("n1")).toEqual(expectedFiles);
    expect(hosts.files("n2")).toEqual(["training.safetensors"]);
  },
);

test("all hosts load the newest complete checkpoint of any host, and store a copy of it", async () => {
  const hosts = new HostDirectories(["n0", "n1", "n2"]);
  await onMesh({ sp: 3 }, (ctx) => trainTo(ctx, 2, hosts));
  await onMesh({ sp: 1 }, (ctx) => trainTo(ctx, 4, hosts.selectHosts("n1")));
  rmSync(hosts.path("n2"));
  const ranks = await onMesh({ sp: 6 }, async (ctx) => {
    const [path, options] = hosts.getCheckpointCall(ctx);
    expect(await findCheckpoint(ctx, path, options)).toEqual({ steps: 4, hosts: ["n1"] });
    const training = buildTraining(ctx);
    const { steps } = await loadCheckpoint(ctx, path, training, options);
    expect(steps).toBe(4);
    return values(training.model);
  });
  for (const rankCheckpoint of ranks) expect(rankCheckpoint).toEqual(ranks[0]);
  for (const name of hosts.names) {
    expect(hosts.bytes(name)).toEqual(hosts.bytes("n1"));
    expect(hosts.files(name)).toEqual(["training.safetensors"]);
  }
});

test("the hosts that have the checkpoint share the transfers to the others", async () => {
  const hosts = new HostDirectories(["n0", "n1", "n2", "n3"]);
  await onMesh({ sp: 2 }, (ctx) => trainTo(ctx, 1, hosts.selectHosts("n0", "n1")));
  const { length } = hosts.bytes("n0");
  const sentFiles = await onMesh({ sp: 4 }, async (ctx) => {
    const [path, options] = hosts.getCheckpointCall(ctx);
    const { bytesSent } = ctx.world.traffic();
    await loadCheckpoint(ctx, path, buildTraining(ctx), options);
    return ctx.world.traffic().bytesSent - bytesSent >= length;
  });
  expect(sentFiles).toEqual([true, true, false, false]);
});

test("rank0: hosts without the file read a copy that is removed afterwards", async () => {
  const hosts = new HostDirectories(["n0", "n1"]);
  await onMesh({ sp: 4 }, (ctx) => trainTo(ctx, 1, hosts, "rank0"));
  expect(hosts.files("n1")).toEqual([]);
  await onMesh({ sp: 4 }, async (ctx) => {
    const [path, options] = hosts.getCheckpointCall(ctx, "rank0");
    expect((await loadCheckpoint(ctx, path, buildTraining(ctx), options)).steps).toBe(1);
  });
  expect(hosts.files("n0")).toEqual(["training.safetensors"]);
  expect(hosts.files("n1")).toEqual([]);
});

test("a file that is sent in several messages arrives unchanged", async () => {
  const hosts = new HostDirectories(["n0", "n1"]);
  const ranks = await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Linear(ctx, 2049, 2048);
    const [path, options] = hosts.getCheckpointCall(ctx);
    await saveCheckpoint(ctx, path, { model, data: "a" }, options);
    if (ctx.rank === 1) rmSync(path);
    using otherModel = new Linear(ctx, 2049, 2048);
    await loadCheckpoint(ctx, path, { model: otherModel }, options);
    // Not compared with `toEqual`, which takes seconds for large arrays because Vitest compares element by element.
    const [loadedWeight, savedWeight] = await Promise.all([otherModel.weight.read(), model.weight.read()]);
    expect(Buffer.from(loadedWeight.buffer).equals(Buffer.from(savedWeight.buffer))).toBe(true);
    return hosts.bytes("n0").length;
  });
  expect(ranks[0]).toBeGreaterThan(12 * 2 ** 20);
  expect(hosts.bytes("n1").equals(hosts.bytes("n0"))).toBe(true);
});

test("a copy that was corrupted during its transfer is neither loaded nor stored", async () => {
  const hosts = new HostDirectories(["n0", "n1"]);
  const [rank0Error, rank1Error] = await collectErrors(2, async (ctx) => {
    const [path, options] = hosts.getCheckpointCall(ctx);
    await saveCheckpoint(ctx, path, buildTraining(ctx), options);
    if (ctx.rank === 1) rmSync(path);
    const sendRecv = ctx.world.sendRecv.bind(ctx.world);
    vi.spyOn(ctx.world, "sendRecv").mockImplementation((transfers, sendOptions) => {
      for (const transfer of transfers) if ("to" in transfer) ctx.device.kernels.fill(transfer.tensor, 1);
      return sendRecv(transfers, sendOptions);
    });
    await loadCheckpoint(ctx, path, buildTraining(ctx), options);
  });
  expect(String(rank0Error)).toMatch(/a failure on rank 1/);
  expect(String(rank1Error)).toMatch(
    /FileError: loadCheckpoint: .*: expected a copy with SHA-256 [0-9a-f]{64}, received [0-9a-f]{64}; load the checkpoint/,
  );
  expect(hosts.files("n0")).toEqual(["training.safetensors"]);
  expect(hosts.files("n1")).toEqual([]);
});

describe("a save that fails on one host replaces no checkpoint", () => {
  test("if one host cannot write", async () => {
    const hosts = new HostDirectories(["n0", "n1"]);
    await onMesh({ sp: 2 }, (ctx) => trainTo(ctx, 1, hosts));
    const bytesBefore = hosts.bytes("n0");
    const [rank0Error, rank1Error] = await collectErrors(2, async (ctx) => {
      const [path, options] = hosts.getCheckpointCall(ctx);
      // The parent folder of this path is a file.
      const rankPath = ctx.rank === 1 ? path.replace("training", "training.safetensors/training") : path;
      await saveCheckpoint(ctx, rankPath, buildTraining(ctx), options);
    });
    expect(String(rank0Error)).toMatch(
      /rank 0: expected success on every rank, received a failure on rank 1 \(saveCheckpoint: /,
    );
    expect(String(rank1Error)).toMatch(
      /FileError: saveCheckpoint: .*: expected a folder that exists or can be created, received EEXIST/,
    );
    expect(hosts.files("n0")).toEqual(["training.safetensors"]);
    expect(hosts.bytes("n0")).toEqual(bytesBefore);
  });

  test("if parameters differ between hosts", async () => {
    const hosts = new HostDirectories(["n0", "n1"]);
    const errors = await collectErrors(2, async (ctx) => {
      const training = buildTraining(ctx);
      if (ctx.rank === 1) ctx.device.write(training.model.head.bias!, new Float32Array(7).fill(1));
      await saveCheckpoint(ctx, hosts.getCheckpointCall(ctx)[0], training, hosts.getCheckpointCall(ctx)[1]);
    });
    for (const error of errors) {
      expect(error).toBeInstanceOf(FileError);
      expect(String(error)).toMatch(
        /identical parameters and optimizer states on all hosts, received SHA-256 \w{12}… on n0 and SHA-256 \w{12}… on n1; call reduceGradients before each step/,
      );
    }
    for (const name of hosts.names) expect(hosts.files(name)).toEqual([]);
  });

  test("if the data of one rank cannot be represented in JSON", async () => {
    const hosts = new HostDirectories(["n0", "n1"]);
    const errors = await collectErrors(2, async (ctx) => {
      const [path, options] = hosts.getCheckpointCall(ctx);
      await saveCheckpoint(ctx, path, { ...buildTraining(ctx), data: ctx.rank === 1 ? [1n] : [1] }, options);
    });
    expect(String(errors[0])).toMatch(/a failure on rank 1 \(saveCheckpoint: data\[0\]/);
    expect(hosts.files("n0")).toEqual([]);
  });
});

describe("loadCheckpoint from hosts with different contents", () => {
  const saveOnHosts = async (): Promise<HostDirectories> => {
    const hosts = new HostDirectories(["n0", "n1", "n2"]);
    await onMesh({ sp: 3 }, (ctx) => trainTo(ctx, 1, hosts));
    return hosts;
  };
  const loadOnHosts = (hosts: HostDirectories) =>
    collectErrors(3, async (ctx) => {
      const [path, options] = hosts.getCheckpointCall(ctx);
      await loadCheckpoint(ctx, path, buildTraining(ctx), options);
    });

  test("rejects different contents of the same step on every rank, and names the hosts", async () => {
    const hosts = await saveOnHosts();
    const bytes = hosts.bytes("n2");
    bytes[bytes.length - 1]! ^= 1;
    writeFileSync(hosts.path("n2"), bytes);
    for (const error of await loadOnHosts(hosts)) {
      expect(error).toBeInstanceOf(FileError);
      expect(String(error)).toMatch(
        /the same contents on all hosts that have step 1, received SHA-256 \w{12}… on n0, n1 and SHA-256 \w{12}… on n2; delete/,
      );
    }
  });

  test("rejects checkpoints of two training runs, even if one has more steps", async () => {
    const hosts = await saveOnHosts();
    rmSync(hosts.path("n2"));
    await onMesh({ sp: 1 }, (ctx) => trainTo(ctx, 3, hosts.selectHosts("n2")));
    for (const error of await loadOnHosts(hosts)) {
      expect(String(error)).toMatch(
        /checkpoints of the same training run on all hosts, received checkpoints of 2 training runs: one on n0, n1 and one on n2; delete the files/,
      );
    }
  });

  test("replaces a file that is damaged on one host by a valid copy, with a warning", async () => {
    const hosts = await saveOnHosts();
    const validBytes = hosts.bytes("n0");
    writeFileSync(hosts.path("n1"), validBytes.subarray(0, 200));
    const warningSpy = vi.spyOn(process, "emitWarning").mockImplementation(() => {});
    await onMesh({ sp: 3 }, async (ctx) => {
      const [path, options] = hosts.getCheckpointCall(ctx);
      expect((await loadCheckpoint(ctx, path, buildTraining(ctx), options)).steps).toBe(1);
    });
    expect(warningSpy.mock.calls.map(([text]) => String(text))).toEqual([
      expect.stringMatching(/ignoring a damaged file on n1: .*restore/),
    ]);
    warningSpy.mockRestore();
    expect(hosts.bytes("n1")).toEqual(validBytes);
  });

  test("rejects files that are damaged or missing on all hosts", async () => {
    const hosts = await saveOnHosts();
    for (const name of hosts.names) writeFileSync(hosts.path(name), hosts.bytes(name).subarray(0, 200));
    for (const error of await loadOnHosts(hosts))
      expect(String(error)).toMatch(/a complete checkpoint on at least one host, received on n0 .*; on n1 .*restore/);
    for (const name of hosts.names) rmSync(hosts.path(name));
    for (const error of await loadOnHosts(hosts))
      expect(String(error)).toMatch(
        /expected a checkpoint on at least one host, received none on n0, n1, n2; correct the path, or call find/,
      );
    await onMesh({ sp: 3 }, async (ctx) => {
      const [path, options] = hosts.getCheckpointCall(ctx);
      expect(await findCheckpoint(ctx, path, options)).toBeUndefined();
    });
  });
});

test("findCheckpoint returns one host for a shared file system, and nothing for a path below a file", async () => {
  const hosts = new HostDirectories(["n0"]);
  const path = hosts.path("n0");
  await onMesh({ sp: 1 }, async (ctx) => saveCheckpoint(ctx, path, buildTraining(ctx)));
  await onMesh({ sp: 2 }, async (ctx) => {
    const host = `n${ctx.rank}`;
    expect(await findCheckpoint(ctx, path, { host })).toEqual({ steps: 0, hosts: ["n0"] });
    expect(await findCheckpoint(ctx, join(path, "training.safetensors"), { host })).toBeUndefined();
  });
});

test("all ranks reject if a host cannot store the file that it receives", async () => {
  const hosts = new HostDirectories(["n0", "n1", "n2"]);
  await onMesh({ sp: 1 }, (ctx) => trainTo(ctx, 1, hosts.selectHosts("n0")));
  const [rank0Error, rank1Error, rank2Error] = await collectErrors(3, async (ctx) => {
    const [path, options] = hosts.getCheckpointCall(ctx);
    const rankPath = ctx.rank === 1 ? path.replace("training", "missing/training") : path;
    await loadCheckpoint(ctx, rankPath, buildTraining(ctx), options);
  });
  expect(String(rank0Error)).toMatch(/a failure on rank 1 \(.*ENOENT/);
  expect(String(rank1Error)).toMatch(/ENOENT/);
  expect(String(rank2Error)).toMatch(/a failure on rank 1 \(.*ENOENT/);
  // The copy that this host received is removed.
  expect(hosts.files("n2")).toEqual([]);
});

test.each([
  ["a file that ends while it is sent", "short", /short: expected 13631488 bytes, received 1000/],
  ["a file that opens and cannot be read", ".", /EISDIR/],
])("%s causes an error on the sender, after the receiver has all messages", async (_, name, expectedError) => {
  const temporaryDirectory = directory();
  writeFileSync(join(temporaryDirectory, "short"), randomBytes(1000));
  const transfer = { path: join(temporaryDirectory, name), bytes: 13 * 2 ** 20, label: "test" };
  const [senderError, receivedBytes] = await onMesh({ sp: 2 }, async (ctx) => {
    if (ctx.rank === 0) return sendFile(ctx, [1], transfer).then(() => "", String);
    return receiveFile(ctx, 0, transfer, async (messages) => {
      let bytes = 0;
      for await (const message of messages) bytes += message.length;
      return String(bytes);
    });
  });
  expect(senderError).toMatch(expectedError);
  expect(receivedBytes).toBe("13631488");
  expect(isOpen(transfer.path)).toBe(false);
});

test("a receiver that fails after a message receives the rest, and communication continues", async () => {
  const path = join(directory(), "file");
  writeFileSync(path, randomBytes(13 * 2 ** 20));
  const transfer = { path, bytes: 13 * 2 ** 20, label: "test" };
  const [, error] = await onMesh({ sp: 2 }, async (ctx) => {
    const fail = async (messages: AsyncIterable<Uint8Array>) => {
      for await (const _ of messages) throw new Error("the disk is full");
    };
    const call = ctx.rank === 0 ? sendFile(ctx, [1], transfer) : receiveFile(ctx, 0, transfer, fail);
    const outcome = await call.then(() => "", String);
    using sum = ones(ctx, [1]);
    ctx.world.allReduce(sum).wait();
    expect([...(await sum.read())]).toEqual([2]);
    return outcome;
  });
  expect(error).toBe("Error: the disk is full");
  expect(isOpen(path)).toBe(false);
});

test("a host that missed a save has a checkpoint of the same training run", async () => {
  const hosts = new HostDirectories(["n0", "n1"]);
  await onMesh({ sp: 2 }, async (ctx) => {
    const training = buildTraining(ctx);
    const [path, options] = hosts.getCheckpointCall(ctx);
    await saveCheckpoint(ctx, path, training, options);
    const earlierBytes = readFileSync(path);
    await trainStep(ctx, training);
    await saveCheckpoint(ctx, path, training, options);
    if (ctx.rank === 1) writeFileSync(path, earlierBytes);
    expect(await findCheckpoint(ctx, path, options)).toEqual({ steps: 1, hosts: ["n0"] });
  });
});

test("the host name is the option, MOSAIC_HOST, or the system's host name with the launcher's node", async () => {
  const path = join(directory(), "x");
  await onOneRank(async (ctx) => {
    using model = new Linear(ctx, 2, 1);
    await saveCheckpoint(ctx, path, { model }, { copies: "perHost" });
    const hosts = async (host?: string) => (await findCheckpoint(ctx, path, { copies: "perHost", host }))!.hosts;
    vi.stubEnv("GROUP_RANK", undefined);
    expect(await hosts()).toEqual([hostname()]);
    vi.stubEnv("GROUP_RANK", "3");
    expect(await hosts()).toEqual([`node 3 (${hostname()})`]);
    vi.stubEnv("MOSAIC_HOST", "n7");
    expect(await hosts()).toEqual(["n7"]);
    expect(await hosts("n8")).toEqual(["n8"]);
    expect((await findCheckpoint(ctx, path))!.steps).toBe(0);
    await expect(saveCheckpoint(ctx, path, { model }, { copies: "each" as never })).rejects.toThrow(
      /saveCheckpoint: copies: expected "shared", "perHost" or "rank0", received "each"/,
    );
  });
});
