import { suiteInParts } from "./shapes.ts";
import { register } from "../../../vitest.world.ts";

register(suiteInParts());
