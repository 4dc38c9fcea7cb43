import { attention2dTables } from "./attention2d.ts";
import { meshAttentionTables } from "./mesh-attention.ts";
import type { Table } from "./table.ts";

/** The papers by name, and what makes their tables. */
export const papers: Readonly<Record<"mesh-attention" | "attention2d", () => readonly Table[]>> = {
  "mesh-attention": meshAttentionTables,
  attention2d: attention2dTables,
};
