import { gridsUpTo, suiteOf, ways } from "./shapes.ts";
import { register } from "./world.ts";

register(suiteOf(ways[0]!, gridsUpTo(8)));
