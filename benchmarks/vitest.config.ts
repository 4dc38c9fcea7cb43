import { inOneProcess } from "../vitest.shared.ts";

export default inOneProcess();
