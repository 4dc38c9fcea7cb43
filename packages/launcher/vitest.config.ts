import { mergeConfig, type ViteUserConfig } from "vitest/config";
import shared from "../../vitest.shared.ts";

const config: ViteUserConfig = mergeConfig(shared, { test: { globalSetup: ["test/build.ts"] } });

export default config;
