import { createPartsSuite } from "./shapes.ts";
import { register } from "../../../vitest.world.ts";

register(createPartsSuite());
