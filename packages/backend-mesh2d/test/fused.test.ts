import { gridsUpTo, suiteOf } from "./shapes.ts";
import { register } from "./world.ts";

register(suiteOf("fused", gridsUpTo(8)));
