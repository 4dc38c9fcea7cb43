import { listGrids, createSuite } from "./shapes.ts";
import { scheduleVariants } from "./ways.ts";
import { register } from "../../../vitest.world.ts";

register(createSuite(scheduleVariants[1]!, [...listGrids(8), [3, 5]]));
