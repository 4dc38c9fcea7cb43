// Formats the results of a dry release as tables of Markdown.

const KIB = 1024;

/** Returns all tables in one document. */
export function formatReport({ packages, cells, templates }) {
  const sections = [formatConsumerTable(cells), formatPackageTable(packages)];
  if (templates.length > 0) sections.splice(1, 0, formatTemplateTable(templates));
  sections.push(formatContents(packages));
  return `${sections.join("\n\n")}\n`;
}

/**
 * Returns a table with a row for each Node.js and package manager, and a column for each step: seconds, or that it
 * failed. The last column is the installed size.
 */
export function formatConsumerTable(cells) {
  const steps = [...new Set(cells.flatMap(({ results }) => results.map(({ step }) => step)))];
  const rows = cells.map(({ version, manager, bytes, results }) => [
    `${version}, ${manager}`,
    ...steps.map((step) => formatResult(results.find((result) => result.step === step))),
    (bytes / KIB ** 2).toFixed(1),
  ]);
  return formatTable(["Node, package manager", ...steps, "MiB installed"], rows);
}

function formatTemplateTable(templates) {
  return formatTable(
    ["template", "seconds"],
    templates.map((templateResult) => [templateResult.template, formatResult(templateResult)]),
  );
}

function formatPackageTable(packages) {
  const rows = packages.map(({ name, version, packed }) => [
    `\`${name}\``,
    version,
    toKib(packed.size),
    toKib(packed.unpackedSize),
    packed.files.length,
    packed.files.filter((path) => path.endsWith(".node")).length,
  ]);
  return formatTable(["package", "version", "KiB packed", "KiB unpacked", "files", "addons"], rows);
}

/** Lists package contents by the first part of their paths, because every source has a declaration. */
function formatContents(packages) {
  const rows = packages.map(({ name, packed }) => {
    const filesByDirectory = groupByDirectory(packed.files);
    return [
      `\`${name}\``,
      [...filesByDirectory].map(([part, files]) => (files.length > 1 ? `${part} (${files.length})` : part)).join(", "),
    ];
  });
  return formatTable(["package", "contents"], rows);
}

const getTopDirectory = (path) => (path.includes("/") ? `${path.split("/")[0]}/` : path);

function groupByDirectory(files) {
  const filesByDirectory = new Map();
  for (const path of files)
    filesByDirectory.set(getTopDirectory(path), [...(filesByDirectory.get(getTopDirectory(path)) ?? []), path]);
  return filesByDirectory;
}

const toKib = (bytes) => Math.ceil(bytes / KIB);
const formatResult = (result) =>
  result === undefined ? "not run" : result.fault === undefined ? result.seconds.toFixed(1) : "**failed**";

function formatTable(heads, rows) {
  const line = (cells) => `| ${cells.join(" | ")} |`;
  return [line(heads), line(heads.map(() => "---")), ...rows.map(line)].join("\n");
}
