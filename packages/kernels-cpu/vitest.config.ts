import { inOneProcess } from "../../vitest.shared.ts";

export default inOneProcess(["test/lifetime.test.ts", "test/matmul.test.ts"]);
