/** Makes an element: its attributes, then what is in it. */
export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Readonly<Record<string, string>> = {},
  ...content: readonly (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...content);
  return made;
}

/** A button that does one thing. */
export function button(label: string, description: string, act: () => void): HTMLButtonElement {
  const made = element("button", { type: "button", "aria-label": description, title: description }, label);
  made.addEventListener("click", act);
  return made;
}

/** A control with its label before it. */
export function labelled<T extends HTMLElement>(words: string, control: T): HTMLLabelElement {
  return element("label", {}, `${words} `, control);
}

/** A part of the page, under a heading. */
export function section(id: string, heading: string, ...content: readonly (Node | string)[]): HTMLElement {
  const title = element("h2", { id: `${id}-heading` }, heading);
  return element("section", { id, "aria-labelledby": `${id}-heading` }, title, ...content);
}

/** One column of a table. */
export interface Column<T> {
  readonly name: string;
  /** Numbers stand right. */
  readonly isNumber?: boolean;
  text(row: T): string;
}

/** Rows beyond these are counted below the table. */
const MAX_ROWS = 1100;

/** The numbers of a figure as a table, closed at first. It is filled when it is opened. */
export function tableOf<T>(
  caption: string,
  columns: readonly Column<T>[],
  rows: () => readonly T[],
): HTMLDetailsElement {
  const summary = element("summary", {}, `Table: ${caption}`);
  const frame = element("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption });
  const details = element("details", {}, summary, frame);
  const fill = (): void => {
    if (!details.open) return;
    const all = rows();
    const head = element("tr", {}, ...columns.map(({ name }) => element("th", { scope: "col" }, name)));
    const lines = all
      .slice(0, MAX_ROWS)
      .map((row) => element("tr", {}, ...columns.map((column, i) => cell(column, row, i))));
    const table = element("table", {}, element("caption", {}, caption), element("thead", {}, head));
    table.append(element("tbody", {}, ...lines));
    frame.replaceChildren(table);
    if (all.length > MAX_ROWS) frame.append(element("p", {}, `${all.length - MAX_ROWS} more rows are not shown.`));
  };
  details.addEventListener("toggle", fill);
  details.addEventListener("refresh", fill);
  return details;
}

function cell<T>({ text, isNumber }: Column<T>, row: T, i: number): HTMLTableCellElement {
  const kind = isNumber === true ? { class: "number" } : {};
  return i === 0 ? element("th", { scope: "row", ...kind }, text(row)) : element("td", kind, text(row));
}
