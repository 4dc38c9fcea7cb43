import { cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { packageVersion } from "./version.ts";

/** The available templates, with a description of each. */
export const templates: Readonly<Record<string, string>> = {
  train: "a transformer, trained on two ranks with context parallelism",
  llm: "a small language model, trained on two ranks, saved in Hugging Face format, and used to generate text",
  backend: "a custom attention backend, tested by the conformance suites",
  transport: "collectives over a custom transport in C++ (requires g++)",
  plan: "the fastest sharding of a model for a planned cluster",
};

/** Options of `createProject`. */
export interface ProjectOptions {
  /** A folder that does not exist or is empty. Its last path component is the name of the package. */
  readonly directory: string;
  /** One of `templates`. */
  readonly template: string;
}

/** Thrown if a project cannot be created. The message states where, what was expected and received, and the remedy. */
export class CreateError extends Error {
  override name = "CreateError";
}

const packageRoot = fileURLToPath(new URL("..", import.meta.url));

/** Published names of files that npm does not publish under their own names, and their names in a project. */
const PUBLISHED_FILE_NAMES: Readonly<Record<string, string>> = { gitignore: ".gitignore" };

/**
 * Writes the files of a template. Does not install packages.
 *
 * @returns the absolute path of the project.
 * @throws CreateError if the template does not exist, the folder is not empty or cannot be created, or the files cannot
 * be written. In the last case, the folder is emptied again if possible.
 *
 * @example
 * ```ts
 * import { templates } from "@mosaic/create";
 * Object.keys(templates); // => ["train", "llm", "backend", "transport", "plan"]
 * ```
 */
export function createProject({ directory, template }: ProjectOptions): string {
  if (typeof template !== "string" || !Object.hasOwn(templates, template)) {
    const templateNames = Object.keys(templates).join(", ");
    throw new CreateError(`createProject: template: expected one of ${templateNames}, received ${String(template)}`);
  }
  if (typeof directory !== "string" || directory === "") {
    throw new CreateError(
      `createProject: directory: expected a path, received ${directory === "" ? '""' : String(directory)}`,
    );
  }
  const path = resolve(directory);
  makeEmptyFolder(path);
  try {
    writeProject(path, template);
  } catch (error) {
    removeFiles(path);
    const { message } = error as Error;
    throw new CreateError(
      `createProject: cannot write the files of the project to ${path}: ${message}; free space, correct its permissions, or pass a different folder`,
      { cause: error },
    );
  }
  return path;
}

function makeEmptyFolder(path: string): void {
  let names: readonly string[];
  try {
    mkdirSync(path, { recursive: true });
    names = readdirSync(path);
  } catch (error) {
    const { message } = error as Error;
    throw new CreateError(`createProject: cannot create the folder ${path}: ${message}; pass a different folder`);
  }
  if (names.length === 0) return;
  throw new CreateError(`createProject: expected an empty folder, received ${path}; pass a different folder`);
}

/** Removes the files of an incomplete project if possible, so that the same command can be repeated. */
function removeFiles(path: string): void {
  try {
    for (const name of readdirSync(path)) rmSync(join(path, name), { recursive: true, force: true });
  } catch {
    // The caller throws the error that preceded this one.
  }
}

function writeProject(path: string, template: string): void {
  for (const sourceName of ["shared", template])
    cpSync(join(packageRoot, "templates", sourceName), path, { recursive: true });
  for (const [packagedName, projectName] of Object.entries(PUBLISHED_FILE_NAMES)) {
    renameSync(join(path, packagedName), join(path, projectName));
  }
  writeManifest(path);
}

/**
 * Sets the project's name, and the versions of @mosaic packages to the version of this one, as all are published
 * together.
 */
function writeManifest(path: string): void {
  const manifest = readFileSync(join(path, "package.json"), "utf8");
  writeFileSync(
    join(path, "package.json"),
    manifest
      .replace('"name": "template"', `"name": "${packageName(basename(path))}"`)
      .replace(/("@mosaic\/[\w-]+": )"\*"/g, `$1"^${packageVersion()}"`),
  );
}

/** Maximum length of the name of a package in npm. */
const MAX_NAME_LENGTH = 214;

/** Returns a valid name of a package for a folder: `my-project` for `My Project`, `project` for `日本語`. */
function packageName(folderName: string): string {
  const name = folderName.toLowerCase().replace(/[^a-z0-9-]+/g, "-");
  return name.replace(/^-+/, "").slice(0, MAX_NAME_LENGTH).replace(/-+$/, "") || "project";
}
