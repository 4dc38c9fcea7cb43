import { gridsUpTo, createSuite } from "./shapes.ts";
import { ways } from "./ways.ts";
import { register } from "../../../vitest.world.ts";

register(createSuite(ways[1]!, [...gridsUpTo(8), [3, 5]]));
