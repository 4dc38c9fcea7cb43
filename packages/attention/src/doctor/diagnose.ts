import { launchEnvironment } from "@mosaic/core";
import { type DetectedHardware, detectOn } from "../detect.ts";
import { driverCheck, gpusCheck, gpuLinksCheck, ncclCheck } from "./gpu.ts";
import {
  jobCheck,
  resourceLimitsCheck,
  memoryCheck,
  networkCheck,
  nodeVersionCheck,
  osCheck,
  cpuCheck,
  environmentCheck,
  sharedMemoryCheck,
} from "./host.ts";
import {
  type ProbeResult,
  type Check,
  formatFailure,
  type Finding,
  type FindingLevel,
  createNote,
  createOk,
  createProblem,
  type System,
} from "./system.ts";

const UMBRELLA_PACKAGE = "@mosaic/attention";
const REQUIRED_PACKAGES = [
  ...["core", "kernels-cpu", "collectives-local", "backend-ring", "backend-mesh2d", "backend-ulysses", "backend-flex"],
  ...["planner", "strategies", "meta-attention", "models", "nn"],
].map((name) => `@mosaic/${name}`);
const OPTIONAL_PACKAGES = ["launcher", "kernels-cuda", "collectives-nccl", "collectives-ucx"].map(
  (name) => `@mosaic/${name}`,
);

/** Checks the installed packages, and runs the parts that must work on every machine. */
const packagesCheck: Check = {
  name: "packages",
  async run(system) {
    const version = system.version(UMBRELLA_PACKAGE);
    const installedPackages = OPTIONAL_PACKAGES.filter((name) => system.version(name) !== undefined);
    return [
      createOk(
        [
          `${UMBRELLA_PACKAGE} ${version ?? "of unknown version"}`,
          ...installedPackages.map((name) => `with ${name}`),
        ].join(", "),
      ),
      ...checkVersions(system, [...REQUIRED_PACKAGES, ...installedPackages], version),
      ...(await checkTwoRanks(system)),
    ];
  },
};

function checkVersions(
  system: System,
  names: readonly string[],
  expectedVersion: string | undefined,
): readonly Finding[] {
  return names.flatMap((name) => {
    const version = system.version(name);
    if (version === undefined)
      return [createProblem(`${name} is missing`, `npm install ${name}@${expectedVersion ?? "latest"}`)];
    if (version === expectedVersion) return [];
    return [
      createProblem(
        `${name} has version ${version}`,
        `npm install ${name}@${expectedVersion}: all @mosaic packages need the same version`,
      ),
    ];
  });
}

/** Tests the addons of the CPU device and of the collectives with two ranks in one process. */
async function checkTwoRanks(system: System): Promise<readonly Finding[]> {
  const probeResult = await system.runProbe("ranks");
  if ("error" in probeResult) return [createProblem(...formatFailure(probeResult.error))];
  if (probeResult.value !== 12)
    return [
      createProblem(`all-reduce of two CPU ranks returned ${probeResult.value}, expected 12`, "reinstall @mosaic"),
    ];
  const isLauncherMissing = system.version("@mosaic/launcher") === undefined;
  return [
    createOk("all-reduce of two CPU ranks over shared memory passed"),
    ...(isLauncherMissing
      ? [createNote("multi-process programs require mosaic-run", "npm install @mosaic/launcher")]
      : []),
  ];
}

/** Reports the device and collectives that `init()` without options selects here. */
const selectionCheck: Check = {
  name: "init()",
  async run(system) {
    try {
      const { device, collectives, warning: detectWarning } = await detectFromProbes(system);
      const reason = system.env["MOSAIC_DEVICE"] ? ", set by MOSAIC_DEVICE" : "";
      return [
        createOk(`device "${device}", collectives "${collectives}"${reason}`),
        ...(detectWarning === undefined ? [] : [createNote(detectWarning)]),
      ];
    } catch (error) {
      return [createProblem((error as Error).message)];
    }
  },
};

async function detectFromProbes({ env, exists, runProbe }: System): Promise<DetectedHardware> {
  const cuda = await runProbe("cuda");
  // Outside of a job, report the selection for a job with one rank per GPU.
  const gpus = "value" in cuda ? Math.max(1, cuda.value.gpus.length) : 1;
  const ranks = launchEnvironment(env).launcher === undefined ? { worldSize: gpus, localRanks: gpus } : {};
  const detectionSystem = {
    env,
    exists,
    queryGpus: () => unwrapProbe(runProbe("cuda")),
    checkNccl: () => unwrapProbe(runProbe("nccl")),
  };
  return detectOn(detectionSystem, ranks);
}

async function unwrapProbe<T>(pendingResult: Promise<ProbeResult<T>>): Promise<T> {
  const probeResult = await pendingResult;
  if ("value" in probeResult) return probeResult.value;
  const { message, remedy } = probeResult.error;
  throw new Error(remedy === undefined ? message : `${message}; ${remedy}`);
}

/** All checks, in the order in which they are reported. */
const checks: readonly Check[] = [
  ...[nodeVersionCheck, osCheck, cpuCheck, memoryCheck, sharedMemoryCheck, resourceLimitsCheck],
  ...[packagesCheck, driverCheck, gpusCheck, gpuLinksCheck, ncclCheck, networkCheck],
  ...[jobCheck, environmentCheck, selectionCheck],
];

/** The findings of one check. */
export interface Section {
  readonly name: string;
  readonly findings: readonly Finding[];
}

/**
 * Runs all checks concurrently, and each probe at most once. Returns the non-empty sections in the order of the checks.
 */
export async function diagnose(system: System): Promise<readonly Section[]> {
  const probeResults = new Map<string, unknown>();
  const runProbe = ((probe: Parameters<System["runProbe"]>[0]) => {
    if (!probeResults.has(probe)) probeResults.set(probe, system.runProbe(probe));
    return probeResults.get(probe);
  }) as System["runProbe"];
  const sections = await Promise.all(checks.map((check) => runCheck(check, { ...system, runProbe })));
  return sections.filter(({ findings }) => findings.length > 0);
}

async function runCheck({ name, run }: Check, system: System): Promise<Section> {
  try {
    return { name, findings: await run(system) };
  } catch (error) {
    return { name, findings: [createProblem(`internal error in this check: ${(error as Error).stack}`)] };
  }
}

const levelSymbols: Readonly<Record<FindingLevel, string>> = { ok: "✓", note: "·", problem: "✗" };

/** Formats a readable report: a line for each finding, its remedy on the next line, and a summary at the end. */
export function formatReport(sections: readonly Section[], summary = "all installed packages work"): string {
  const width = Math.max(...sections.map(({ name }) => name.length)) + 2;
  const lines = sections.flatMap(({ name, findings }) =>
    findings.flatMap(({ level, text, remedy }, i) => {
      const indent = " ".repeat(width + 2);
      const body = text.replaceAll("\n", `\n${indent}`);
      const firstLine = `${levelSymbols[level]} ${(i === 0 ? name : "").padEnd(width)}${body}`;
      return remedy === undefined
        ? [firstLine]
        : [firstLine, `${indent}→ ${remedy.trim().replaceAll("\n", `\n${indent}  `)}`];
    }),
  );
  return [...lines, "", formatSummary(sections, summary)].join("\n");
}

function formatSummary(sections: readonly Section[], okText: string): string {
  const numProblems = countFindings(sections, "problem");
  const numNotes = countFindings(sections, "note");
  const formatCount = (number: number, word: string): string => `${number} ${word}${number === 1 ? "" : "s"}`;
  if (numProblems > 0) return `${formatCount(numProblems, "problem")}, ${formatCount(numNotes, "note")}`;
  return `${okText}${numNotes > 0 ? `; ${formatCount(numNotes, "note")}` : ""}`;
}

export function countFindings(sections: readonly Section[], level: FindingLevel): number {
  return sections.flatMap(({ findings }) => findings).filter((finding) => finding.level === level).length;
}

/** Formats the report as JSON. */
export function formatReportJson(sections: readonly Section[], version: string | undefined): string {
  const findings = sections.flatMap(({ name, findings: sectionFindings }) =>
    sectionFindings.map((finding) => ({ check: name, ...finding })),
  );
  return JSON.stringify(
    { version, problems: countFindings(sections, "problem"), notes: countFindings(sections, "note"), findings },
    null,
    2,
  );
}
