// Tests a release without publishing it. Builds and checks every package as it would be published, publishes all of
// them to a registry on this machine only, and installs them in empty folders, without a compiler, with npm, pnpm and
// yarn, under every supported Node.js. The results are in build/release/report.md, which git ignores. The folders are
// temporary, and are kept after a fault.
//
//   npm run release:dry [-- --nodes 20,22 --managers npm --no-build --no-templates]
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { checkPackage, packPackage } from "./release/checks.mjs";
import { createInstallArguments, tryConsumer } from "./release/consumers.mjs";
import { startRegistry, publish } from "./release/registry.mjs";
import { buildAll } from "./release/prebuilds.mjs";
import { formatReport } from "./release/report.mjs";
import { stageAll } from "./release/stage.mjs";
import { PLATFORMS } from "./release/sysroot.mjs";
import { tryTemplates } from "./release/templates.mjs";
import { installTools, NODE_VERSIONS, outputDirectory, root, run } from "./release/tools.mjs";

const options = {
  nodes: { type: "string", default: NODE_VERSIONS.map((version) => version.split(".")[0]).join() },
  managers: { type: "string", default: "npm,pnpm,yarn" },
  build: { type: "boolean", default: true },
  templates: { type: "boolean", default: true },
};
const { values } = parseArgs({ options, allowNegative: true });
const platforms = Object.keys(PLATFORMS);
const versions = NODE_VERSIONS.filter((version) => values.nodes.split(",").includes(version.split(".")[0]));
const managers = values.managers.split(",");
const statusBefore = run("git", ["status", "--porcelain"], { cwd: root });
const faults = [];
// Projects are outside of the repository, because Node.js also searches every parent directory of a program for
// packages and would find those of the work tree.
const projectsDirectory = mkdtempSync(join(realpathSync(tmpdir()), "mosaic-release-"));

function printHeading(text) {
  console.log(`\n── ${text}`);
}

async function preparePackages(toolPaths) {
  if (values.build) {
    printHeading("build");
    run(process.execPath, [join(root, "scripts/turbo.mjs"), "--quiet", "build", "--filter=./packages/*"], {
      cwd: root,
    });
    faults.push(...buildAll(platforms));
  }
  printHeading("check");
  const tarballs = join(outputDirectory, "tarballs");
  rmSync(tarballs, { recursive: true, force: true });
  mkdirSync(tarballs, { recursive: true });
  const packages = stageAll(root, join(outputDirectory, "stage")).map((stagedPackage) => ({
    ...stagedPackage,
    packed: packPackage(stagedPackage, tarballs),
  }));
  for (const stagedPackage of packages) {
    const packageFaults = await checkPackage(stagedPackage, stagedPackage.packed, { attw: toolPaths.attw, platforms });
    faults.push(...packageFaults);
    console.log(
      `${stagedPackage.name}@${stagedPackage.version}: ${Math.ceil(stagedPackage.packed.size / 1024)} KiB${packageFaults.length > 0 ? ", FAULTS" : ""}`,
    );
  }
  return packages;
}

function tryConsumers(toolPaths, registry) {
  const cells = [];
  for (const version of versions) {
    for (const [manager, installArguments] of Object.entries(createInstallArguments(toolPaths)).filter(([name]) =>
      managers.includes(name),
    )) {
      printHeading(`Node ${version}, ${manager}`);
      const directory = join(projectsDirectory, `${manager}-${version}`);
      const cell = tryConsumer({ version, manager, install: installArguments, registry, directory });
      for (const { step, seconds, fault } of cell.results) {
        console.log(
          `  ${fault === undefined ? "ok    " : "FAILED"}  ${step.padEnd(12)} ${seconds.toFixed(1).padStart(6)} s`,
        );
        if (fault !== undefined) faults.push(`Node ${version}, ${manager}, ${step}: ${fault}`);
      }
      cells.push(cell);
    }
  }
  return cells;
}

const installedToolPaths = installTools();
const packages = await preparePackages(installedToolPaths);
const directory = join(outputDirectory, "registry");
rmSync(directory, { recursive: true, force: true });
const registry = await startRegistry(installedToolPaths.verdaccio, directory);
try {
  printHeading(`publish to ${registry.url}`);
  for (const stagedPackage of packages) publish(stagedPackage, registry);
  const cells = tryConsumers(installedToolPaths, registry);
  const templates = values.templates ? tryTemplates({ version: versions[0], registry }) : [];
  for (const { template, fault } of templates) if (fault !== undefined) faults.push(`template ${template}: ${fault}`);
  writeFileSync(join(outputDirectory, "report.md"), formatReport({ packages, cells, templates }));
} finally {
  registry.close();
}
const isTreeChanged = run("git", ["status", "--porcelain"], { cwd: root }) !== statusBefore;
if (isTreeChanged) faults.push("the working tree was modified");
// The packages that scripts/release-publish.mjs may publish.
const packageListPath = join(outputDirectory, "packages.json");
rmSync(packageListPath, { force: true });
if (faults.length === 0) {
  writeFileSync(
    packageListPath,
    JSON.stringify(packages.map(({ name, version, directory }) => ({ name, version, directory }))),
  );
}
for (const fault of faults) console.error(`\n${fault}`);
if (faults.length === 0) rmSync(projectsDirectory, { recursive: true });
else console.error(`\nthe projects: ${projectsDirectory}`);
console.log(
  `\nrelease: ${faults.length === 0 ? "no faults" : `${faults.length} faults`}; report: ${join(outputDirectory, "report.md")}`,
);
process.exitCode = faults.length === 0 ? 0 : 1;
