import { suiteInParts } from "./shapes.ts";
import { register } from "./world.ts";

register(suiteInParts());
