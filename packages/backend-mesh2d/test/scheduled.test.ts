import { gridsUpTo, suiteOf, ways } from "./shapes.ts";
import { register } from "./world.ts";

register(suiteOf(ways[1]!, [...gridsUpTo(8), [3, 5]]));
