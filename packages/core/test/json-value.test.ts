import { expect, test } from "vitest";
import { checkJsonValue, OptionError } from "../src/index.ts";

test("checkJsonValue accepts what JSON preserves", () => {
  const shared = { a: 1 };
  const values = [null, true, -1.5, "", [], {}, [shared, shared], Object.create(null), { absent: undefined }];
  for (const value of values) expect(() => checkJsonValue("x", value)).not.toThrow();
});

test("checkJsonValue names the path of the first value that JSON would drop or change", () => {
  const circular: { self: unknown[] } = { self: [] };
  circular.self.push(circular);
  class Point {
    x = 1;
  }
  const cases: readonly (readonly [value: unknown, path: string, received: string])[] = [
    [undefined, "x", "undefined"],
    [{ a: [0, Number.NaN] }, "x.a[1]", "NaN"],
    [{ a: { b: -Infinity } }, "x.a.b", "-Infinity"],
    [[1n], "x[0]", "1n"],
    [[() => {}], "x[0]", "a function"],
    [[Symbol("s")], "x[0]", "Symbol(s)"],
    // oxlint-disable-next-line no-sparse-arrays -- JSON changes holes to null
    [[1, , 2], "x[1]", "undefined"],
    [[undefined], "x[0]", "undefined"],
    [new Map(), "x", "a Map"],
    [new Date(0), "x", "a Date"],
    [{ p: new Point() }, "x.p", "a Point"],
    [new Float32Array(2), "x", "a Float32Array"],
    [Object.create(Object.create(Object.create(null))), "x", "an empty object"],
    [Object.assign([1], { extra: 1 }), "x", 'an array with the key "extra"'],
    [{ [Symbol("s")]: 1 }, "x", "an object with the key Symbol(s)"],
    [{ toJSON: () => 1 }, "x.toJSON", "a function"],
    [circular, "x.self[0]", "a circular reference"],
  ];
  for (const [value, path, received] of cases) {
    let error: unknown;
    try {
      checkJsonValue("x", value);
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toBeInstanceOf(OptionError);
    expect((error as OptionError).details).toMatchObject({ where: path, received });
  }
});
