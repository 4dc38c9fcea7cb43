export {
  type Rows,
  TabularClassifier,
  tabularClassifierOptions,
  type TabularClassifierOptions,
} from "./classifier.ts";
export type { ClassName } from "./datasets.ts";
