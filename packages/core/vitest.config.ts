import { inOneProcess } from "../../vitest.shared.ts";

export default inOneProcess(["test/lost-tensors.test.ts"]);
