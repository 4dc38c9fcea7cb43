// A candidate with an option that does not exist.
import { local } from "@mosaic/core";

export default () => ({ backend: local(), mehs: { sp: 4 } });
