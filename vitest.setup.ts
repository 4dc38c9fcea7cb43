/// <reference types="node" />
import { afterAll } from "vitest";

// Files share a process where the package's configuration allows it: none finds the environment that another left.
const before = { ...process.env };

afterAll(() => {
  for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
  Object.assign(process.env, before);
});
