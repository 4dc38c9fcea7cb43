import { createRequire } from "node:module";
import { basename, extname, isAbsolute, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { type AttentionBackend, formatValue } from "@mosaic/core";
import { type Candidate, candidateOptions, type PlanOptions } from "../plan/job.ts";

/** The command line is invalid. The message states what is valid. */
export class UsageError extends Error {
  override readonly name: string = "UsageError";
}

/** Argument of the function of a caller's module, as plain data. */
export interface CandidateJob {
  readonly ranks: number;
  readonly nodes: number;
  readonly gpusPerNode: number;
  readonly tokens: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
}

/** Default export of a module named by `--backend`. */
export type CandidateFactory = (job: CandidateJob) => CandidateResult | Promise<CandidateResult>;
type CandidateResult = AttentionBackend | Candidate;

/** Loads a module and calls it to create its candidate. */
export async function loadCandidate(path: string, options: PlanOptions): Promise<Candidate> {
  const { default: createCandidate } = await importModule(path);
  if (typeof createCandidate !== "function") {
    throw new UsageError(
      `--backend ${path}: expected a default export that returns a backend, received ${typeof createCandidate}`,
    );
  }
  const { tokens, numHeads, numKvHeads = numHeads, headDim, nodes = 1, gpusPerNode } = options;
  const job: CandidateJob = { ranks: nodes * gpusPerNode, nodes, gpusPerNode, tokens, numHeads, numKvHeads, headDim };
  const factoryResult = await callFactory(path, createCandidate as CandidateFactory, job);
  const candidate = isCandidate(factoryResult) ? factoryResult : { backend: factoryResult };
  const { backend } = candidate;
  if (!Array.isArray(backend?.axes) || typeof backend.attend !== "function") {
    throw new UsageError(
      `--backend ${path}: expected its default export to return a backend, or { backend, mesh, name }, received ${formatValue(factoryResult)}`,
    );
  }
  const imports = [`import makeBackend from ${JSON.stringify(formatSpecifier(path))};`];
  const name = candidate.name ?? `${backend.name} (${basename(path)})`;
  return { code: formatCandidateCode(job, candidate === factoryResult), imports, ...candidate, name };
}

/** Returns a path as a specifier of `import`, which would be a package's name without a leading dot or slash. */
function formatSpecifier(path: string): string {
  return isAbsolute(path) || /^\.{1,2}\//.test(path) ? path : `./${path}`;
}

/** Calls the module's function. Its errors are reported with the module's name. */
async function callFactory(
  path: string,
  createCandidate: CandidateFactory,
  job: CandidateJob,
): Promise<CandidateResult> {
  try {
    const factoryResult = await createCandidate(job);
    if (isCandidate(factoryResult)) candidateOptions.parse(factoryResult);
    return factoryResult;
  } catch (error) {
    throw createLoadError(path, error);
  }
}

function isCandidate(factoryResult: CandidateResult): factoryResult is Candidate {
  return typeof factoryResult === "object" && factoryResult !== null && "backend" in factoryResult;
}

function createLoadError(path: string, error: unknown): UsageError {
  const reason = error instanceof Error ? error.message : String(error);
  return new UsageError(`--backend ${path}: ${reason}`, { cause: error });
}

/** Returns the call that creates the candidate again. */
function formatCandidateCode(job: CandidateJob, isWrapped: boolean): string {
  const entries = Object.entries(job).map(([key, value]) => `${key}: ${value}`);
  const call = `await makeBackend({ ${entries.join(", ")} })`;
  return isWrapped ? `(${call}).backend` : call;
}

async function importModule(path: string): Promise<{ readonly default?: unknown }> {
  try {
    if ([".ts", ".mts", ".tsx"].includes(extname(path)) && !supportsTypeStripping()) await registerTsx(path);
    return await import(pathToFileURL(resolve(path)).href);
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw createLoadError(path, error);
  }
}

/** Whether this version of Node runs TypeScript files itself. */
function supportsTypeStripping(): boolean {
  return Boolean((process.features as { typescript?: unknown }).typescript);
}

/** Makes Node load TypeScript with the user's own tsx, found beside the file or in the working directory. */
async function registerTsx(path: string): Promise<void> {
  for (const importer of [resolve(path), resolve("package.json")]) {
    let tsxPath: string;
    try {
      tsxPath = createRequire(importer).resolve("tsx");
    } catch {
      continue;
    }
    await import(pathToFileURL(tsxPath).href);
    return;
  }
  throw new UsageError(
    `--backend ${path}: Node ${process.versions.node} does not run ${extname(path)} files by itself, and tsx is not ` +
      `installed in this project; run "npm install --save-dev tsx", or build to JavaScript`,
  );
}
