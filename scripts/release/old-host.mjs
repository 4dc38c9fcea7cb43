// Runs the published addons with only Node.js and the libraries of Debian 11 (glibc 2.31). The sysroot is the root of
// the file system, for x64 by chroot, which requires root or user namespaces, and for Arm in QEMU.
//
//   node scripts/release/old-host.mjs [linux-x64] [linux-arm64]        (after npm run release:dry, which stages the packages)
import { cpSync, existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { listPackages } from "../workspace.mjs";
import { PLATFORMS, createSysroot } from "./sysroot.mjs";
import { installNode, NODE_VERSIONS, outputDirectory, root, run } from "./tools.mjs";

const PROGRAM_PATH = "scripts/release/programs/addons.mjs";

/** Creates a directory with the file system of a host of the platform. */
function createRootDirectory(platform) {
  const rootDirectory = join(outputDirectory, "old-host", platform);
  rmSync(rootDirectory, { recursive: true, force: true });
  cpSync(createSysroot(platform), rootDirectory, { recursive: true, verbatimSymlinks: true });
  for (const directory of ["dev/shm", "tmp", "proc", "app"])
    mkdirSync(join(rootDirectory, directory), { recursive: true });
  cpSync(join(installNode(NODE_VERSIONS[0], platform), "node"), join(rootDirectory, "node"));
  cpSync(join(root, PROGRAM_PATH), join(rootDirectory, "app/main.mjs"));
  const stageDirectory = join(outputDirectory, "stage");
  for (const { name, path } of listPackages(stageDirectory)) {
    cpSync(join(stageDirectory, path), join(rootDirectory, "app/node_modules", name), { recursive: true });
  }
  return rootDirectory;
}

/** Runs the program on a host of the platform and returns its output. */
function runOnPlatform(platform) {
  const rootDirectory = createRootDirectory(platform);
  if (platform === `linux-${process.arch}`) {
    const mountCommands = `mount -t tmpfs tmpfs ${rootDirectory}/dev/shm && mount -t proc proc ${rootDirectory}/proc`;
    const userOptions = process.getuid() === 0 ? [] : ["--map-root-user"];
    const command = `${mountCommands} && exec chroot ${rootDirectory} /node /app/main.mjs`;
    return run("unshare", [...userOptions, "--mount", "--pid", "--fork", "sh", "-c", command], {
      env: { MOSAIC_DEVICE: "cpu", PATH: process.env.PATH },
    });
  }
  const emulator = ["qemu-aarch64-static", "qemu-aarch64"].find((name) =>
    process.env.PATH.split(":").some((directory) => existsSync(join(directory, name))),
  );
  if (emulator === undefined)
    throw new Error("old-host: expected qemu-aarch64, received none; on Debian: apt-get install qemu-user");
  return run(emulator, [
    "-L",
    rootDirectory,
    "-cpu",
    "max",
    join(rootDirectory, "node"),
    join(rootDirectory, "app/main.mjs"),
  ]);
}

const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(PLATFORMS);
if (!existsSync(join(outputDirectory, "stage")) || readdirSync(join(outputDirectory, "stage")).length === 0) {
  throw new Error(
    `old-host: expected staged packages in ${join(outputDirectory, "stage")}, received none; run npm run release:dry`,
  );
}
for (const platform of names) console.log(`${platform}: ${runOnPlatform(platform).trim()}`);
