import { inspect } from "node:util";
import { expect, test } from "vitest";
import { ones } from "../../src/creation.ts";
import { Linear } from "../../src/modules/linear.ts";
import { Module } from "../../src/modules/module.ts";
import { referenceWorld } from "../reference/index.ts";

const [ctx] = await referenceWorld(1);

class Block extends Module {
  readonly fc1 = this.addChild("fc1", new Linear(ctx!, 2, 4));
  readonly fc2 = this.addChild("fc2", new Linear(ctx!, 4, 2, { bias: false }));
}

class Model extends Module {
  readonly scale = this.addParameter("scale", ones(ctx!, [2]));
  readonly table = this.addBuffer("table", ones(ctx!, [3, 2]));
  readonly blocks = ["0", "1", "2"].map((name) => this.addChild(name, new Block()));
  readonly head = this.addChild("head", new Linear(ctx!, 2, 8, { dtype: "bfloat16" }));
}

test("inspect and String format a module as a tree of its children and tensors", () => {
  using model = new Model();
  model.scale.requiresGrad = false;
  const text = `Model(
  scale [2] float32, frozen
  table [3,2] float32, buffer
  (0-2): 3 x Block(
    (fc1): Linear(weight [4,2] float32; bias [4] float32)
    (fc2): Linear(weight [2,4] float32)
  )
  (head): Linear(weight [8,2] bfloat16; bias [8] bfloat16)
)`;
  expect(inspect(model)).toBe(text);
  expect(`${model}`).toBe(text);
});

test("children of a list that differ, or whose names are not consecutive, are separate entries", () => {
  class List extends Module {
    readonly layers = [
      this.addChild("0", new Linear(ctx!, 2, 2)),
      this.addChild("1", new Linear(ctx!, 2, 3)),
      this.addChild("3", new Linear(ctx!, 2, 3)),
      this.addChild("4", new Linear(ctx!, 2, 3)),
    ];
  }
  using list = new List();
  expect(String(list).match(/^ {2}\(.*/gm)).toEqual([
    "  (0): Linear(weight [2,2] float32; bias [2] float32)",
    "  (1): Linear(weight [3,2] float32; bias [3] float32)",
    "  (3-4): 2 x Linear(weight [3,2] float32; bias [3] float32)",
  ]);
});

test("inspect calls the toString of a subclass, and accepts modules without tensors and disposed ones", () => {
  class Empty extends Module {}
  class Named extends Module {
    override toString(): string {
      return "Named(8)";
    }
  }
  expect(inspect(new Empty())).toBe("Empty()");
  expect(inspect(new Named())).toBe("Named(8)");
  const linear = new Linear(ctx!, 2, 2);
  linear.dispose();
  expect(inspect(linear)).toBe("Linear(weight [2,2] float32; bias [2] float32)");
});
