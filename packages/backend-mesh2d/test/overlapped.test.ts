import { gridsUpTo, suiteOf } from "./shapes.ts";
import { ways } from "./ways.ts";
import { register } from "./world.ts";

register(suiteOf(ways[1]!, [...gridsUpTo(8), [3, 5]]));
