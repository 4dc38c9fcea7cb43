import * as option from "../option.ts";
import { defineOptions } from "../options.ts";
import type {
  AllToAllOptions,
  CollectiveOptions,
  GatherOptions,
  GroupCastOptions,
  GroupReduceOptions,
} from "./process-group.ts";

/** One option per field of an interface. */
type FieldsOf<Options> = Readonly<Record<keyof Options, option.Option<unknown>>>;

/** The number of counts and their values depend on the group, which checks them. */
const isArray = (value: unknown): value is readonly number[] => Array.isArray(value);
const counts = option.custom("an array, the count of each rank", isArray, { optional: true });
const label = option.string({ optional: true });

const collectiveOptions = defineOptions("collective", { label } satisfies FieldsOf<CollectiveOptions>);
const gatherOptions = defineOptions("gather", { counts, label } satisfies FieldsOf<GatherOptions>);
const allToAllOptions = defineOptions("allToAll", {
  send: counts,
  receive: counts,
  label,
} satisfies FieldsOf<AllToAllOptions>);
const groupCastOptions = defineOptions("groupCast", {
  hierarchical: option.boolean({ optional: true }),
  label,
} satisfies FieldsOf<GroupCastOptions>);
const groupReduceOptions = defineOptions("groupReduce", {
  wire: option.oneOf(["float32", "bfloat16"], { optional: true }),
  label,
} satisfies FieldsOf<GroupReduceOptions>);

const optionsByOperation: Readonly<Record<string, Pick<typeof collectiveOptions, "parse">>> = {
  allGather: gatherOptions,
  reduceScatter: gatherOptions,
  allToAll: allToAllOptions,
  groupCast: groupCastOptions,
  groupReduce: groupReduceOptions,
};

/** Returns the label in the options of an operation. Throws an OptionError for unknown names and invalid values. */
export function parseLabel(operation: string, options: CollectiveOptions, where: string): string | undefined {
  return (optionsByOperation[operation] ?? collectiveOptions).parse(options, where).label;
}
