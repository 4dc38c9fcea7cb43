import { readFileSync } from "node:fs";
import { join } from "node:path";
import { UsageError } from "../errors.ts";
import { findClosestMatch } from "./closest-match.ts";
import type { RawValue } from "./parse.ts";
import { findOption, OPTIONS, type OptionSpec } from "./specs.ts";

/** Name of the file with a project's default options, in the working directory. */
const CONFIG_FILE_NAME = "mosaic.launch.json";

/** A value and its source, as `--dry-run` prints it. */
export interface SourcedValue {
  readonly value: RawValue | undefined;
  readonly source: string;
}

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Returns the value of each option from the first source that has it: flag, MOSAIC_*, mosaic.launch.json, PET_*, the
 * scheduler, default. Throws UsageError if the file cannot be read or names an unknown option.
 */
export function resolveSources(
  flags: ReadonlyMap<string, RawValue>,
  env: Environment,
  cwd: string,
): ReadonlyMap<string, SourcedValue> {
  const file = readConfig(join(cwd, CONFIG_FILE_NAME));
  return new Map(OPTIONS.map((spec) => [spec.name, findSource(spec, flags, env, file)]));
}

function findSource(
  spec: OptionSpec,
  flags: ReadonlyMap<string, RawValue>,
  env: Environment,
  file: ReadonlyMap<string, RawValue>,
): SourcedValue {
  const flag = flags.get(spec.name);
  if (flag !== undefined) return { value: flag, source: `--${spec.name}` };
  const variable = spec.name.toUpperCase().replaceAll("-", "_");
  if (spec.kind !== "list" && !["help", "version"].includes(spec.name)) {
    const variableValue = env[`MOSAIC_${variable}`];
    if (variableValue !== undefined) return { value: variableValue, source: `MOSAIC_${variable}` };
  }
  const configValue = file.get(spec.name);
  if (configValue !== undefined) return { value: configValue, source: CONFIG_FILE_NAME };
  const petValue = spec.isTorchElastic === true ? env[`PET_${variable}`] : undefined;
  if (petValue !== undefined) return { value: petValue, source: `PET_${variable}` };
  return slurmValue(spec.name, env) ?? { value: spec.default, source: "default" };
}

/**
 * Returns an option's value from SLURM's variables. In a step, the variables of the step are used. In a batch script,
 * they describe the whole allocation. SLURM_LAUNCH_NODE_IPADDR is not read, because srun may run on a login node.
 */
function slurmValue(option: string, env: Environment): SourcedValue | undefined {
  if (env.SLURM_JOB_ID === undefined) return undefined;
  const isInStep = isSlurmStep(env);
  const findVariable = (names: readonly string[], isValid: (value: string) => boolean): SourcedValue | undefined => {
    const source = names.find((name) => isValid(env[name] ?? ""));
    return source === undefined ? undefined : { value: env[source], source };
  };
  const isPositive = (value: string): boolean => Number(value) > 0;
  switch (option) {
    case "nnodes":
      return findVariable(isInStep ? ["SLURM_STEP_NUM_NODES"] : JOB_NODE_COUNT_VARIABLES, isPositive);
    case "nproc-per-node":
      return findVariable(["SLURM_GPUS_ON_NODE"], isPositive) ?? (isInStep ? slurmTasksOfNode(env) : undefined);
    case "node-rank":
      return isInStep && isPositive(env.SLURM_STEP_NUM_NODES ?? "") && env.SLURM_STEP_NUM_NODES !== "1"
        ? findVariable(["SLURM_NODEID"], (value) => /^\d+$/.test(value))
        : undefined;
    case "rdzv-endpoint": {
      if (!isInStep || env.SLURM_STEP_NUM_NODES === "1") return undefined;
      const nodeList = findVariable(["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"], (value) => value !== "");
      return nodeList && { value: firstHost(String(nodeList.value)), source: nodeList.source };
    }
  }
  return undefined;
}

/** SLURM's step ids of batch scripts and interactive shells start here. Their processes are not started by srun. */
const FIRST_SPECIAL_STEP = 0xffff_fff0;

/** Returns whether srun has started this process or one of its ancestors. */
export function isSlurmStep(env: Environment): boolean {
  return Boolean(env.SLURM_STEP_ID) && Number(env.SLURM_STEP_ID) < FIRST_SPECIAL_STEP;
}

/** Returns the number of SLURM tasks of this node if it is above 1. `2(x3),1` lists the tasks of each node. */
function slurmTasksOfNode(env: Environment): SourcedValue | undefined {
  const source = "SLURM_STEP_TASKS_PER_NODE";
  const counts = (env[source] ?? "").split(",").flatMap((taskCountText) => {
    const [, tasksPerNode = "", nodes = "1"] = /^(\d+)(?:\(x(\d+)\))?$/.exec(taskCountText) ?? [];
    return Array.from({ length: Number(nodes) }, () => tasksPerNode);
  });
  const value = counts[Number(env.SLURM_NODEID ?? 0)];
  return Number(value) > 1 ? { value, source } : undefined;
}

/** Variables with the number of nodes of the allocation, in a batch script. The script runs only on the first node. */
export const JOB_NODE_COUNT_VARIABLES: readonly string[] = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];

/** Returns the first host of a SLURM node list: n001 for `n[001-003,7],m1`. */
export function firstHost(nodeList: string): string {
  const [firstHostText = ""] = /^(?:[^,[]|\[[^\]]*\])*/.exec(nodeList) ?? [];
  return firstHostText.replaceAll(/\[(\d+)[^\]]*\]/g, "$1");
}

function readConfig(path: string): ReadonlyMap<string, RawValue> {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return new Map();
    throw new UsageError(`${path}: cannot be read: ${(error as Error).message}`);
  }
  let parsedConfig: unknown;
  try {
    parsedConfig = JSON.parse(text);
  } catch (error) {
    throw new UsageError(`${path}: invalid JSON: ${(error as Error).message}`);
  }
  if (typeof parsedConfig !== "object" || parsedConfig === null || Array.isArray(parsedConfig))
    throw new UsageError(
      `${path}: expected an options object, such as { "nproc-per-node": 4 }, received ${JSON.stringify(parsedConfig).slice(0, 80)}`,
    );
  return new Map(Object.entries(parsedConfig).map(([key, value]) => configEntry(path, key, value)));
}

/** Parses one entry of the file. `nprocPerNode`, `nproc_per_node` and `nproc-per-node` are the same option. */
function configEntry(path: string, key: string, value: unknown): [string, RawValue] {
  const kebabCaseName = key.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
  const spec = findOption(kebabCaseName);
  if (spec === undefined) {
    const closestName = findClosestMatch(
      kebabCaseName,
      OPTIONS.map(({ name }) => name),
    );
    throw new UsageError(
      `${path}: unknown option "${key}"${closestName === undefined ? "" : `; did you mean "${closestName}"?`}`,
    );
  }
  if (spec.kind === "list") return [spec.name, configList(path, key, value)];
  if (typeof value === "boolean" && spec.kind === "value") {
    if (!value && spec.negatedName !== undefined) return [spec.name, spec.negatedName];
  } else if (["string", "number", "boolean"].includes(typeof value)) {
    return [spec.name, typeof value === "boolean" ? value : String(value)];
  }
  throw new UsageError(
    `${path}: "${key}": expected ${spec.value ?? "true or false"}, received ${JSON.stringify(value)}`,
  );
}

function configList(path: string, key: string, value: unknown): readonly string[] {
  if (Array.isArray(value) && value.every((item) => typeof item === "string")) return value;
  if (typeof value === "object" && value !== null && !Array.isArray(value))
    return Object.entries(value).map(([name, item]) => `${name}=${String(item)}`);
  throw new UsageError(`${path}: "${key}": expected a list of strings, received ${JSON.stringify(value)}`);
}
