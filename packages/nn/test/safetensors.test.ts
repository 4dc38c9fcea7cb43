import { spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { lstatSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { fromArray, type HostTensor, Linear, ones, type Tensor } from "@mosaic/core";
import { describe, expect, test, vi } from "vitest";
import { elementBytes } from "../src/safetensors/format.ts";
import {
  FileError,
  openSafetensors,
  readSafetensors,
  type SafetensorsFile,
  tokenFile,
  writeSafetensors,
} from "../src/index.ts";
import { file, directory } from "./reference/directory.ts";
import { generateNumbers } from "./reference/numbers.ts";
import { onOneRank } from "./reference/world.ts";

function writeBytes(bytes: Uint8Array): string {
  const path = join(directory(), "x.safetensors");
  writeFileSync(path, bytes);
  return path;
}

const host = (values: readonly number[], shape: readonly number[] = [values.length]): HostTensor => ({
  dtype: "float32",
  shape,
  values: Float32Array.from(values),
});

describe("readSafetensors", () => {
  test("rejects a path without a file and a directory with a FileError", async () => {
    const missing = join(directory(), "missing.safetensors");
    for (const [name, read] of Object.entries({ readSafetensors, openSafetensors })) {
      const error = await read(missing).catch((reason: unknown) => reason as Error);
      expect(error).toBeInstanceOf(FileError);
      expect(error).toMatchObject({ cause: { code: "ENOENT" } });
      expect((error as Error).message).toBe(
        `${name}: ${missing}: expected a safetensors file, received no such file; ` +
          "correct the path, or the permissions of the file",
      );
      await expect(read(directory())).rejects.toThrow(/^\w+: \S+: expected a safetensors file, received a directory;/);
    }
  });

  test("rejects a FIFO, for which a read would wait, and a device", async () => {
    const fifo = join(directory(), "fifo");
    spawnSync("mkfifo", [fifo]);
    for (const read of [readSafetensors, openSafetensors]) {
      await expect(read(fifo)).rejects.toThrow(/^\w+: \S+fifo: expected a safetensors file, received a FIFO; correct/);
      await expect(read("/dev/null")).rejects.toThrow(/expected a safetensors file, received a character device;/);
    }
    expect(() => tokenFile(fifo)).toThrow(/^tokenFile: \S+fifo: expected a file of tokens, received a FIFO; correct/);
  });

  // Byte for byte the output of Python's safetensors 0.4 for save({"b": [[1, 2]] float32, "a": [3] int64}, {"format":
  // "pt"}): larger elements first, a header padded with spaces to a multiple of eight.
  test("reads a file of Python's safetensors, which writeSafetensors writes byte for byte", async () => {
    const text =
      '{"__metadata__":{"format":"pt"},"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}}';
    const header = text.padEnd(Math.ceil(text.length / 8) * 8);
    const data = new Uint8Array([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]);
    const { tensors, metadata } = await readSafetensors(writeBytes(file(header, data)));
    expect([...metadata]).toEqual([["format", "pt"]]);
    expect([...tensors.keys()]).toEqual(["a", "b"]);
    expect(tensors.get("a")).toMatchObject({ format: "I64", shape: [1], dtype: "float32" });
    expect(Array.from(tensors.get("a")!.values)).toEqual([3]);
    expect(tensors.get("b")).toMatchObject({ format: "F32", shape: [1, 2], dtype: "float32" });
    expect(Array.from(tensors.get("b")!.values)).toEqual([1, 2]);
    const rewrittenPath = join(directory(), "again");
    await writeSafetensors(rewrittenPath, new Map([["b", host([1, 2], [1, 2])]]), { format: "pt" });
    const expected = '{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}';
    expect(readFileSync(rewrittenPath)).toEqual(
      Buffer.from(file(expected.padEnd(Math.ceil(expected.length / 8) * 8), data.subarray(8))),
    );
  });

  test("reads every dtype", async () => {
    const cases: [dtype: string, bytes: number[], value: number][] = [
      ["F64", [0, 0, 0, 0, 0, 0, 0xf8, 0x3f], 1.5],
      ["F16", [0x00, 0x3e], 1.5],
      ["F16", [0x01, 0x80], -(2 ** -24)],
      ["F16", [0x00, 0xfc], -Infinity],
      ["BF16", [0xc0, 0xbf], -1.5],
      ["I32", [0xfe, 0xff, 0xff, 0xff], -2],
      ["U8", [200], 200],
      ["BOOL", [1], 1],
    ];
    for (const [dtype, bytes, value] of cases) {
      const header = { x: { dtype, shape: [], data_offsets: [0, bytes.length] } };
      const { tensors } = await readSafetensors(writeBytes(file(header, new Uint8Array(bytes))));
      expect(Array.from(tensors.get("x")!.values), dtype).toEqual([value]);
    }
    const { tensors } = await readSafetensors(
      writeBytes(file({ x: { dtype: "F8_E4M3", shape: [2], data_offsets: [0, 2] } }, new Uint8Array(2))),
    );
    expect(tensors.get("x")!.bytes.length).toBe(2);
    expect(() => tensors.get("x")!.values).toThrow(/tensor "x": expected .*F32.*received F8_E4M3/);
  });

  test("reads a file without tensors, empty tensors, and names in any order", async () => {
    expect((await readSafetensors(writeBytes(file({})))).tensors.size).toBe(0);
    const header = {
      b: { dtype: "F32", shape: [1], data_offsets: [0, 4] },
      none: { dtype: "F32", shape: [0, 3], data_offsets: [4, 4] },
      a: { dtype: "F32", shape: [1], data_offsets: [4, 8] },
    };
    const { tensors } = await readSafetensors(writeBytes(file(header, new Uint8Array(8))));
    expect([...tensors].map(([name, { values }]) => [name, values.length])).toEqual([
      ["b", 1],
      ["none", 0],
      ["a", 1],
    ]);
  });
});

test.each(["float32", "bfloat16", "float16"] as const)("%s tensors of any strides are restored bit for bit", (dtype) =>
  onOneRank(async (ctx) => {
    const values = [
      ...generateNumbers(1000, 1).map((x, i) => x * 10 ** ((i % 9) - 4)),
      0,
      -0,
      Infinity,
      -Infinity,
      2 ** -24,
      65504,
    ];
    using x = fromArray(ctx, values, [2, values.length / 2], { dtype });
    using transposed = x.transpose(0, 1);
    const path = join(directory(), "x");
    await writeSafetensors(
      path,
      new Map([
        ["turned", transposed],
        ["x", x],
      ]),
    );
    const { tensors } = await readSafetensors(path);
    expect(tensors.get("x")!.dtype).toBe(dtype);
    expect(tensors.get("x")!.values).toEqual(await x.read());
    expect(tensors.get("turned")!.values).toEqual(await transposed.read());
  }),
);

test("values are rounded to 16 bits as on a device", () =>
  onOneRank(async (ctx) => {
    const values = Float32Array.from([
      ...generateNumbers(2000, 1).map((x, i) => x * 2 ** ((i % 45) - 28)),
      65_519,
      65_520,
      1e30,
      Number.NaN,
    ]);
    for (const dtype of ["bfloat16", "float16"] as const) {
      using x = fromArray(ctx, values, [values.length], { dtype });
      const path = join(directory(), dtype);
      await writeSafetensors(path, new Map([["x", { dtype, shape: [values.length], values }]]));
      expect((await readSafetensors(path)).tensors.get("x")!.values).toEqual(await x.read());
    }
  }));

test("a file has the values at the call of writeSafetensors, even if training continues", () =>
  onOneRank(async (ctx) => {
    using layer = new Linear(ctx, 3, 3);
    const weightBefore = await layer.weight.read();
    const path = join(directory(), "x");
    const writePromise = writeSafetensors(path, layer.stateDict());
    ctx.device.kernels.fill(layer.weight, 7);
    await writePromise;
    expect((await readSafetensors(path)).tensors.get("weight")!.values).toEqual(weightBefore);
  }));

describe("readSafetensors of invalid files", () => {
  const oneElementEntry = { dtype: "F32", shape: [1], data_offsets: [0, 4] };
  const fourBytes = new Uint8Array(4);
  const cases: [fault: string, bytes: Uint8Array, message: RegExp][] = [
    [
      "an empty file",
      new Uint8Array(0),
      /received 0 bytes; pass a file in safetensors format, or restore it from a copy/,
    ],
    ["a file shorter than the length of the header", new Uint8Array(5), /received 5 bytes/],
    [
      "a header longer than the file",
      file({ x: oneElementEntry }, fourBytes, 1000),
      /a header of 1000 bytes in a file of/,
    ],
    ["a header length of 2^60", file({}, fourBytes, 2 ** 60), /a header of/],
    ["a header that is not JSON", file("hello"), /header in JSON/],
    ["a header that is not UTF-8", file("\u0000", new Uint8Array(0)).map((x, i) => (i === 8 ? 0xff : x)), /UTF-8/],
    ["a header that is a list", file("[1]"), /a header that is a JSON object/],
    ["metadata with a value that is not a string", file({ __metadata__: { a: 1 } }), /__metadata__ with string values/],
    [
      "truncated tensor data",
      file({ x: oneElementEntry }, new Uint8Array(3)),
      /expected 4 bytes of tensor data, received 3; restore the file from a copy; nothing was loaded/,
    ],
    [
      "extra bytes after the tensor data",
      file({ x: oneElementEntry }, new Uint8Array(5)),
      /expected 4 bytes of tensor data, received 5/,
    ],
    [
      "overlapping tensors",
      file({ x: oneElementEntry, y: { ...oneElementEntry, data_offsets: [2, 6] } }, new Uint8Array(6)),
      /"y" to begin at byte 4.*received 2/,
    ],
    [
      "two tensors with the same bytes",
      file({ x: oneElementEntry, y: oneElementEntry }, fourBytes),
      /to begin at byte 4.*received 0/,
    ],
    [
      "a gap before the first tensor",
      file({ x: { ...oneElementEntry, data_offsets: [4, 8] } }, new Uint8Array(8)),
      /begin at byte 0.*received 4/,
    ],
    [
      "too few bytes for the shape",
      file({ x: { ...oneElementEntry, shape: [2] } }, fourBytes),
      /8 bytes for F32 \[2\], received 4/,
    ],
    [
      "a shape whose size overflows",
      file({ x: { ...oneElementEntry, shape: [2 ** 40, 2 ** 40] } }, fourBytes),
      /bytes for F32/,
    ],
    ["an unknown dtype", file({ x: { ...oneElementEntry, dtype: "F12" } }, fourBytes), /a dtype among .*received F12/],
    [
      "a dtype that is the name of an object's method",
      file({ x: { ...oneElementEntry, dtype: "toString" } }, fourBytes),
      /a dtype among/,
    ],
    ["a negative length", file({ x: { ...oneElementEntry, shape: [-1] } }, fourBytes), /dtype, shape and data_offsets/],
    [
      "offsets in descending order",
      file({ x: { ...oneElementEntry, data_offsets: [4, 0] } }, fourBytes),
      /data_offsets \[begin, end\]/,
    ],
    ["only one offset", file({ x: { ...oneElementEntry, data_offsets: [0] } }, fourBytes), /data_offsets/],
    ["an entry that is null", file({ x: null }, fourBytes), /received null/],
  ];

  test.each(cases)("rejects an invalid file and reports the reason: %s", async (_, bytes, message) => {
    const error = await readSafetensors(writeBytes(bytes)).catch((each: unknown) => each);
    expect(error).toBeInstanceOf(FileError);
    expect((error as Error).message).toMatch(message);
  });

  test("returns tensors that match their shapes, or throws a FileError, if any byte of the header changes", async () => {
    const path = join(directory(), "x");
    await writeSafetensors(
      path,
      new Map([
        ["x", host([1, 2], [2, 1])],
        ["y", host([3])],
      ]),
      { note: "n" },
    );
    const fileBytes = readFileSync(path);
    const header = 8 + Number(fileBytes.readBigUInt64LE(0));
    const changedPath = join(directory(), "changed");
    let numRefused = 0;
    for (let byteIndex = 0; byteIndex < header; byteIndex++) {
      for (const value of [0x00, 0x20, 0x22, 0x30 + (byteIndex % 10), 0x7b, 0xff]) {
        writeFileSync(changedPath, fileBytes.with(byteIndex, value));
        const outcome = await readSafetensors(changedPath).catch((error: unknown) => error);
        if (outcome instanceof Error) {
          expect(outcome, `byte ${byteIndex} ${value}`).toBeInstanceOf(FileError);
          numRefused++;
          continue;
        }
        let totalBytes = 0;
        for (const { format, shape, bytes } of (outcome as SafetensorsFile).tensors.values()) {
          expect(bytes.length, `byte ${byteIndex} ${value}`).toBe(
            shape.reduce((product, length) => product * length, elementBytes[format]!),
          );
          totalBytes += bytes.length;
        }
        expect(totalBytes, `byte ${byteIndex} ${value}`).toBe(fileBytes.length - header);
      }
    }
    expect(numRefused).toBeGreaterThan(header);
  });

  test("rejects a file that is truncated at any byte", async () => {
    const path = join(directory(), "x");
    await writeSafetensors(
      path,
      new Map([
        ["x", host([1, 2, 3])],
        ["y", host([4])],
      ]),
    );
    const fileBytes = readFileSync(path);
    for (let length = 0; length < fileBytes.length; length++) {
      await expect(readSafetensors(writeBytes(fileBytes.subarray(0, length)))).rejects.toThrow(FileError);
    }
  });
});

describe("writeSafetensors", () => {
  test("replaces a file, and leaves no other file in its folder", async () => {
    const temporaryDirectory = directory();
    const path = join(temporaryDirectory, "x");
    await writeSafetensors(path, new Map([["x", host([1])]]));
    await writeSafetensors(path, new Map([["x", host([2])]]));
    expect(readdirSync(temporaryDirectory)).toEqual(["x"]);
    expect(Array.from((await readSafetensors(path)).tensors.get("x")!.values)).toEqual([2]);
  });

  test("a file that the system cannot write is a FileError with its path, and leaves no temporary file", async () => {
    const home = directory();
    const folder = join(home, "folder");
    mkdirSync(folder);
    const fifo = join(home, "fifo");
    spawnSync("mkfifo", [fifo]);
    const device = join(home, "device");
    symlinkSync("/dev/null", device);
    for (const [path, kind] of [
      [folder, "a directory"],
      [fifo, "a FIFO"],
      [device, "a character device"],
    ] as const) {
      const error = await writeSafetensors(path, new Map([["x", host([1])]])).catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(FileError);
      expect((error as Error).message).toBe(
        `${path}: expected a file that can be written, received ${kind}; pass the path of a regular file; nothing was changed`,
      );
    }
    expect(lstatSync(device).isSymbolicLink()).toBe(true);
    expect(lstatSync(fifo).isFIFO()).toBe(true);
    expect(readdirSync(home)).toEqual(["device", "fifo", "folder"]);
  });

  test("keeps the existing file if it fails", async () => {
    const home = directory();
    const path = join(home, "x");
    await writeSafetensors(path, new Map([["x", host([1])]]));
    const missing = join(home, "missing", "x");
    await expect(writeSafetensors(missing, new Map())).rejects.toThrow(
      `${missing}: expected a file that can be written, received ENOENT`,
    );
    await onOneRank(async (ctx) => {
      using table = fromArray(ctx, [1], [1, 1]);
      using index = fromArray(ctx, [3], [1]);
      using out = fromArray(ctx, [0], [1, 1]);
      ctx.device.kernels.gatherRows(out, table, index);
      await expect(
        writeSafetensors(
          path,
          new Map([
            ["a", out],
            ["b", table],
          ]),
        ),
      ).rejects.toThrow(/gatherRows/);
    }).catch((error: unknown) => expect(String(error)).toContain("gatherRows"));
    expect(readdirSync(home)).toEqual(["x"]);
    expect(Array.from((await readSafetensors(path)).tensors.get("x")!.values)).toEqual([1]);
  });

  test("rejects values that are not a Float32Array before it reads a tensor", async () => {
    const home = directory();
    await onOneRank(async (ctx) => {
      using x = ones(ctx, [2]);
      const read = vi.spyOn(x, "read");
      const values = Float64Array.of(1, 2) as never;
      const tensors = new Map<string, Tensor | HostTensor>([
        ["x", x],
        ["y", { dtype: "float32", shape: [2], values }],
      ]);
      await expect(writeSafetensors(join(home, "x"), tensors)).rejects.toThrow(
        /writeSafetensors, "y": values: expected a Float32Array, received a Float64Array; convert/,
      );
      expect(read).not.toHaveBeenCalled();
    });
    expect(readdirSync(home)).toEqual([]);
  });

  test("rejects values that do not fill their shape, and the reserved name __metadata__", async () => {
    const path = join(directory(), "x");
    await expect(writeSafetensors(path, new Map([["x", host([1, 2], [3])]]))).rejects.toThrow(
      /3 values for \[3\], received 2/,
    );
    await expect(writeSafetensors(path, new Map([["__metadata__", host([1])]]))).rejects.toThrow(
      /a tensor name other than/,
    );
  });
});

test("writeSafetensors removes only temporary files of the same path that killed processes of this host left", async () => {
  const home = directory();
  const path = join(home, "x.safetensors");
  const { pid: deadPid } = spawnSync(process.execPath, ["--version"]);
  const localHostName = hostname().replaceAll(/[^\w-]/g, "_");
  const temporaryName = (name: string, hostName: string, pid: number): string =>
    `.${name}.${hostName}.${pid}.${randomUUID()}.part`;
  const ownTemporaryFiles = [
    temporaryName("x.safetensors", localHostName, deadPid),
    temporaryName("x.safetensors", localHostName, process.pid),
  ];
  const otherTemporaryFiles = [
    temporaryName("x.safetensors", localHostName, process.ppid),
    temporaryName("x.safetensors", "elsewhere", deadPid),
    temporaryName("y.safetensors", localHostName, deadPid),
    ".x.safetensors.part",
  ];
  for (const name of [...ownTemporaryFiles, ...otherTemporaryFiles]) writeFileSync(join(home, name), "");
  // Two concurrent writes. Neither removes the temporary file of the other as stale.
  const tensors = new Map([["x", host([1, 2])]]);
  await Promise.all([writeSafetensors(path, tensors), writeSafetensors(path, tensors)]);
  expect(readdirSync(home).toSorted()).toEqual([...otherTemporaryFiles, "x.safetensors"].toSorted());
});
