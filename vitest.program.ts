/// <reference types="node" />
import { readdirSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

/**
 * Bundles a TypeScript program of a package's tests, to be started as many processes: each would else load a compiler
 * first. What packages it imports stay imports. Returns the path of the JavaScript, in the package's `build` directory, from
 * where sources find prebuilt addons as `dist` does.
 */
export async function bundled(source: URL): Promise<string> {
  const path = fileURLToPath(source);
  const root = packageOf(dirname(path));
  const name = relative(join(root, "test"), path).replace(/\.ts$/, "").replaceAll("/", "-");
  const outdir = join(root, "build");
  const options = { bundle: true, format: "esm", target: "node20", packages: "external" } as const;
  await build({ ...options, entryPoints: { [name]: path }, outdir });
  return join(outdir, `${name}.js`);
}

function packageOf(directory: string): string {
  return readdirSync(directory).includes("package.json") ? directory : packageOf(dirname(directory));
}
