// Tries every template of @mosaic/create with the registry on this machine. One command creates and installs a project,
// the next starts it.
import { mkdirSync, readdirSync, realpathSync, rmSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { createBarePath } from "./consumers.mjs";
import { createLoopbackEnvironment } from "./registry.mjs";
import { catchFault, installNode, outputDirectory, root, run } from "./tools.mjs";

/** Expected output of each program, and whether it needs a compiler. */
const EXPECTED_RESULTS = {
  train: { prints: /^.*100 \d+\.\d+/m },
  llm: { prints: /step 200: loss 0\.\d+\n[^]*saved/ },
  backend: { prints: /\d+ cases passed/ },
  transport: { prints: /\d+ cases passed/, compiles: true },
  plan: { prints: /strategies were compared/ },
};

/** Tries each template. Returns `{ template, seconds, fault }` of each. */
export function tryTemplates({ version, registry }) {
  const directory = join(outputDirectory, "templates");
  rmSync(directory, { recursive: true, force: true });
  mkdirSync(directory, { recursive: true });
  const templateNames = readdirSync(join(root, "packages/create/templates")).filter((name) => name !== "shared");
  return templateNames.map((template) => {
    const startTime = performance.now();
    const fault = catchFault(() => tryTemplate({ template, directory, version, registry }));
    console.log(`template ${template}: ${fault === undefined ? "ok" : "FAILED"}`);
    return { template, seconds: (performance.now() - startTime) / 1000, fault };
  });
}

function tryTemplate({ template, directory, version, registry }) {
  const { prints: outputPattern, compiles: needsCompiler } = EXPECTED_RESULTS[template];
  const bin = createBarePath(join(directory, `${template}-path`), installNode(version));
  const npm = realpathSync(run("sh", ["-c", "command -v npm"]).trim());
  symlinkSync(npm, join(bin, "npm"));
  const path = needsCompiler ? `${bin}:${process.env.PATH}` : bin;
  const baseEnvironment = {
    HOME: join(directory, `${template}-home`),
    PATH: path,
    LANG: "C.UTF-8",
    MOSAIC_DEVICE: "cpu",
    CI: "1",
  };
  mkdirSync(baseEnvironment.HOME, { recursive: true });
  const env = createLoopbackEnvironment(registry, baseEnvironment);
  const execute = (args, cwd) => run(join(bin, "node"), [npm, ...args], { cwd, env, timeout: 600_000 });
  execute(["create", "--yes", "@mosaic@latest", template, "--", "--template", template], directory);
  const project = join(directory, template);
  const programOutput = execute(["start"], project);
  if (!outputPattern.test(programOutput)) throw new Error(`expected ${outputPattern}, received:\n${programOutput}`);
  execute(["run", "typecheck"], project);
}
