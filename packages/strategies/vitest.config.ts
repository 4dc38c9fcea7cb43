import { mergeConfig } from "vitest/config";
import { inOneProcess } from "../../vitest.shared.ts";

export default mergeConfig(inOneProcess(), { test: { globalSetup: "test/build.ts" } });
