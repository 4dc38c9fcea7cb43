import type { Traffic } from "../collectives/process-group.ts";
import { expectValue } from "../errors.ts";
import type { Coordinate } from "../mesh.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsDeclaration, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import type { Fields } from "../option.ts";
import { isShardedCall, type ShardedAttentionCall } from "./dependencies.ts";

/** Declares the options that closed forms of traffic have in common. */
export const trafficOptions = defineOptions("traffic", {
  /** The backend's axis. Default "sp". */
  axis: option.string({ default: "sp" }),
  /** Length of every mesh axis. */
  mesh: option.meshShape(),
  /** The attention call of the rank: its coordinate, the mask, and the layouts of queries and keys. */
  call: option.custom("a ShardedAttentionCall { at, queries, keys, mask }", hasSliceList),
  /** Mesh coordinate of the keys. Default: call.at. */
  from: option.meshShape({ optional: true }),
  /** The dtype of q, k, v and dOut. */
  dtype: option.dtype(),
});
/** Options of every backend's traffic function. A backend may have more. */
export type TrafficOptions = OptionsOf<typeof trafficOptions>;

function isSliceList(value: unknown): boolean {
  const names = ["q0", "q1", "k0", "k1", "type"] as const;
  const isSlice = (slice: unknown): boolean =>
    typeof slice === "object" && slice !== null && names.every((name) => name in slice);
  return Array.isArray(value) && [...value].every(isSlice);
}

function hasSliceList(value: unknown): value is ShardedAttentionCall {
  return isShardedCall(value) && isSliceList(value.mask);
}

/**
 * Parses the options of a closed form. Fields that are not declared are ignored, because the description of a call may
 * have more.
 */
export function parseTrafficOptions<F extends Fields>(
  declaration: OptionsDeclaration<F>,
  options: object,
): ResolvedOptionsOf<OptionsDeclaration<F>> {
  const isDeclaration =
    option.hasMethods<OptionsDeclaration<F>>("parse")(declaration) && typeof declaration.fields === "object";
  expectValue("parseTrafficOptions", isDeclaration, "what defineOptions returns", declaration);
  const isObject = typeof options === "object" && options !== null;
  const knownOptions = isObject && Object.entries(options).filter(([name]) => Object.hasOwn(declaration.fields, name));
  return declaration.parse(knownOptions ? Object.fromEntries(knownOptions) : options);
}

/**
 * Returns the length of a mesh axis, for a coordinate `from` on it. `where` is the caller's name in errors.
 *
 * @example
 * ```ts
 * import { axisLength } from "@mosaic/core/context-parallel";
 * axisLength("myTraffic", { dp: 2, sp: 4 }, { axis: "sp", from: { sp: 3 } }); // => 4
 * ```
 * @throws OptionError if the mesh lacks the axis, or if `from` is outside of it.
 */
export function axisLength(where: string, mesh: Coordinate, axisLocation: { axis: string; from: Coordinate }): number {
  const { axis, from } = axisLocation ?? {};
  const isAxisLocation = typeof axis === "string" && typeof from === "object" && from !== null;
  expectValue(
    "axisLength",
    isAxisLocation && typeof where === "string",
    "a name, a mesh, and { axis, from }",
    axisLocation,
  );
  expectValue(
    `${where}: mesh`,
    option.meshShape().accepts(mesh),
    "axis lengths by name, such as { dp: 2, sp: 4 }",
    mesh,
  );
  const size = mesh[axis];
  const isValidSize = size !== undefined && Number.isSafeInteger(size) && size >= 1 && size <= 2 ** 16;
  expectValue(`${where}: mesh`, isValidSize, `1 to 65536 ranks along axis "${axis}"`, size);
  const axisCoordinate = from[axis];
  const isInRange =
    axisCoordinate !== undefined &&
    Number.isSafeInteger(axisCoordinate) &&
    axisCoordinate >= 0 &&
    axisCoordinate < size!;
  expectValue(`${where}: from`, isInRange, `an integer from 0 to ${size! - 1} for axis "${axis}"`, axisCoordinate);
  return size!;
}

/** Traffic of one rank along the axis in the forward and the backward of a call. */
export interface CallTraffic {
  readonly forward: Traffic;
  readonly backward: Traffic;
}

/** Sizes of the chunks of one kind that a rank sends and receives. */
export interface ChunkFlow {
  /** Bytes per row, or per row and head, of each tensor of a chunk. Each tensor is one message. */
  readonly bytesPerRow: readonly number[];
  /** Rows, or rows times heads, of each chunk that is sent or received. A chunk without rows is not a message. */
  readonly sent: readonly number[];
  readonly received: readonly number[];
}

/**
 * Returns the flow in the opposite direction, with `bytesPerRow` for what is sent back.
 *
 * @example
 * ```ts
 * import { reverseFlow } from "@mosaic/core/context-parallel";
 * const flow = { bytesPerRow: [8], sent: [100], received: [50] };
 * reverseFlow(flow, [16]); // => { bytesPerRow: [16], sent: [50], received: [100] }
 * ```
 * @throws OptionError unless the flow has three arrays of numbers.
 */
export function reverseFlow(flow: ChunkFlow, bytesPerRow: readonly number[]): ChunkFlow {
  checkFlow("reverseFlow", { ...flow, bytesPerRow });
  const { sent, received } = flow;
  return { bytesPerRow, sent: received, received: sent };
}

/**
 * Returns the total traffic of flows of chunks.
 *
 * @example
 * ```ts
 * import { totalTraffic } from "@mosaic/core/context-parallel";
 * // K and V of 100 and of 50 rows are sent, 8 bytes per row each, and those of 100 are received.
 * totalTraffic([{ bytesPerRow: [8, 8], sent: [100, 50], received: [100] }]);
 * // => { bytesSent: 2400, bytesReceived: 1600, messagesSent: 4 }
 * ```
 */
export function totalTraffic(flows: readonly ChunkFlow[]): Traffic {
  expectValue("totalTraffic", Array.isArray(flows), "an array of flows { bytesPerRow, sent, received }", flows);
  for (const flow of flows) checkFlow("totalTraffic", flow);
  return {
    bytesSent: sum(flows.map(({ bytesPerRow, sent }) => sum(bytesPerRow) * sum(sent))),
    bytesReceived: sum(flows.map(({ bytesPerRow, received }) => sum(bytesPerRow) * sum(received))),
    messagesSent: sum(
      flows.map(({ bytesPerRow, sent }) => bytesPerRow.length * sent.filter((rows) => rows > 0).length),
    ),
  };
}

const isNumberArray = option.array(option.number()).accepts;

function checkFlow(where: string, flow: ChunkFlow): void {
  const { bytesPerRow, sent, received } = flow ?? {};
  const isValidFlow = isNumberArray(bytesPerRow) && isNumberArray(sent) && isNumberArray(received);
  expectValue(where, isValidFlow, "a flow { bytesPerRow, sent, received } with three arrays of numbers", flow);
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, each) => total + each, 0);
}
