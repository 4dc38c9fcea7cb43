/// <reference types="node" />
import { afterAll } from "vitest";

// Test files may share a process, so the environment is restored after each file.
const before = { ...process.env };

afterAll(() => {
  for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
  Object.assign(process.env, before);
});
