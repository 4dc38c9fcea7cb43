import { inspect } from "node:util";
import { expectValue } from "./errors.ts";

/**
 * Defines that `console.log` of an object with this prototype shows its `toString()`, not its fields, which may include
 * a device with the functions of its addon.
 *
 * @example
 * ```ts
 * import { inspect } from "node:util";
 * import { inspectAsString } from "@mosaic/core";
 * class Group {
 *   readonly device = {};
 *   static {
 *     inspectAsString(this.prototype);
 *   }
 *   toString(): string {
 *     return "Group(sp)";
 *   }
 * }
 * inspect(new Group()); // => "Group(sp)"
 * ```
 */
export function inspectAsString(prototype: object): void {
  const isExtensible = typeof prototype === "object" && Object.isExtensible(prototype);
  expectValue("inspectAsString", isExtensible, "an extensible object, such as the prototype of a class", prototype);
  const value = function (this: object): string {
    return String(this);
  };
  Object.defineProperty(prototype, inspect.custom, { value, configurable: true, writable: true });
}
