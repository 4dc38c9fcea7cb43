import { beforeEach, describe, expect, test } from "vitest";
import type { Context } from "../../src/context.ts";
import { OptionError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { Linear } from "../../src/modules/linear.ts";
import { Module } from "../../src/modules/module.ts";
import { ReferenceDevice } from "../reference/index.ts";

let ctx: Context;
beforeEach(async () => {
  ctx = await init({ device: new ReferenceDevice(), seed: 3 });
});

class Block extends Module {
  readonly fc1 = this.addChild("fc1", new Linear(ctx, 2, 2));
  readonly fc2 = this.addChild("fc2", new Linear(ctx, 2, 2));
}

class Model extends Module {
  readonly head = this.addChild("head", new Linear(ctx, 2, 2));
  readonly first = this.addChild("first", new Block());
  readonly second = this.addChild("second", this.first);
  readonly tail = this.addChild("tail", this.first.fc2);
}

describe("namedModules", () => {
  test("lists a module before its children, in the order of registration, and a shared one once", () => {
    const model = new Model();
    expect(model.namedModules()).toEqual([
      ["", model],
      ["head", model.head],
      ["first", model.first],
      ["first.fc1", model.first.fc1],
      ["first.fc2", model.first.fc2],
    ]);
    const layer = new Linear(ctx, 1, 1);
    expect(layer.namedModules()).toEqual([["", layer]]);
  });

  test("lists a shared module under each of its names with removeDuplicate: false", () => {
    const model = new Model();
    const modules = model.namedModules({ removeDuplicate: false });
    expect(modules.map(([name]) => name)).toEqual([
      ...["", "head", "first", "first.fc1", "first.fc2"],
      ...["second", "second.fc1", "second.fc2", "tail"],
    ]);
    expect(modules.at(-1)![1]).toBe(model.first.fc2);
  });

  test("lists a module that replaced a child, and rejects invalid options", () => {
    const model = new Model();
    const layer = new Linear(ctx, 2, 3);
    model.replaceChild("head", layer);
    expect(model.namedModules()[1]).toEqual(["head", layer]);
    expect(() => model.namedModules({ removeDuplicate: 1 } as never)).toThrow(OptionError);
    expect(() => model.namedModules({ prefix: "a" } as never)).toThrow(/Model\.namedModules/);
  });
});
