// Turns the examples of the documents and doc comments into tests, one file per example, under build/doc-examples.
//
//   ```ts              run; every `// => value` and `// throws text` is asserted
//   ```ts ranks=4      run under `mosaic-run` by four ranks
//   ```ts no-run       type-checked only
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { listFiles, listPackages } from "./workspace.mjs";

/** The ```ts blocks of a Markdown text: `{ info, line, code }`, where `line` is that of the code's first line. */
export function parseBlocks(markdown) {
  const blocks = [];
  let currentBlock;
  for (const [i, line] of markdown.split("\n").entries()) {
    const fence = /^\s*```(.*)$/.exec(line);
    if (!fence) currentBlock?.lines.push(line);
    else if (currentBlock) {
      if (/^ts\b/.test(currentBlock.info))
        blocks.push({ info: currentBlock.info, line: currentBlock.line, code: currentBlock.lines.join("\n") });
      currentBlock = undefined;
    } else currentBlock = { info: fence[1].trim(), line: i + 2, lines: [] };
  }
  return blocks;
}

/** Returns the ```ts blocks of the doc comments of a TypeScript source. All other lines are treated as blank. */
export function parseCommentBlocks(source) {
  const comments = source.replace(/\/\*\*[\s\S]*?\*\/|[^\n]/g, (part) =>
    part.startsWith("/**") ? part.replace(/^[ \t]*\/?\*+\/? ?/gm, "") : "",
  );
  return parseBlocks(comments);
}

/** Returns the code with its `// => value` and `// throws text` comments turned into assertions, line for line. */
export function instrument(code) {
  const lines = code.split("\n");
  for (const [i, line] of lines.entries()) {
    const expectationMatch = /^(.*?)\s*\/\/ (=>|throws) (.+)$/.exec(line);
    if (!expectationMatch) continue;
    const [, textBefore, kind, expected] = expectationMatch;
    lines[i] = textBefore;
    let end = i;
    while (end > 0 && lines[end].trim() === "") end--;
    const start = findStatementStart(lines, end);
    const statement = lines.slice(start, end + 1).join("\n");
    lines.splice(start, end + 1 - start, ...createAssertion(statement, kind, expected).split("\n"));
  }
  return lines.join("\n");
}

/**
 * Returns the first line of a statement. It follows a line that ends a statement or opens a block, and its brackets
 * balance.
 */
function findStatementStart(lines, end) {
  for (let start = end; start > 0; start--) {
    const text = lines.slice(start, end + 1).join("\n");
    const numOpeningBrackets = text.match(/[([{]/g)?.length ?? 0;
    const numClosingBrackets = text.match(/[)\]}]/g)?.length ?? 0;
    if (numOpeningBrackets === numClosingBrackets && /(^|[;{}]|\/\/.*|\*\/)\s*$/.test(lines[start - 1])) return start;
  }
  return 0;
}

function createAssertion(statement, kind, expected) {
  const expression = statement.trim().replace(/;$/, "");
  const expectedText = JSON.stringify(expected);
  const declarationMatch = /^(?:const|let|(?:await )?using) ([\w$]+)\b[^=]*=/.exec(expression);
  if (declarationMatch && kind === "=>") return `${statement} __value(${declarationMatch[1]}, ${expectedText});`;
  if (/^(?:const|let|import|if|for|return|class|function)\b/.test(expression)) {
    throw new Error(`expected an expression or \`const name = …\` before \`// ${kind}\`, received \`${expression}\``);
  }
  const logMatch = /^console\.log\(([\s\S]*)\)$/.exec(expression);
  if (kind === "throws") return `await __thrown(async () => (${expression}), ${expectedText});`;
  return `__value(${logMatch ? logMatch[1] : expression}, ${expectedText});`;
}

/** Writes the tests of all examples below `root` to `out`. Returns the number of examples. */
export function generateTests(root, out) {
  rmSync(out, { recursive: true, force: true });
  let count = 0;
  for (const { name, paths } of groupExamples(root)) {
    const examples = paths.flatMap((path) => listExamples(root, path));
    if (examples.length > 0) writeTest(join(out, "test", name), examples);
    count += examples.length;
  }
  mkdirSync(out, { recursive: true });
  const base = relative(out, join(root, "tsconfig.base.json"));
  const compilerOptions = { noEmit: true, declaration: false, isolatedDeclarations: false };
  writeFileSync(join(out, "tsconfig.json"), JSON.stringify({ extends: base, compilerOptions, include: ["."] }));
  return count;
}

/** Returns the sources of each test file. The documents have one, and each package has one. */
function groupExamples(root) {
  const docs = listFiles(join(root, "docs"), [".md"]).map((path) => `docs/${path}`);
  const packages = listPackages(root).filter((each) => !each.isProgram);
  return [
    { name: "documents", paths: ["README.md", "CONTRIBUTING.md", ...docs] },
    ...packages.map(({ directory, path, dir }) => ({
      name: directory,
      paths: [`${path}/README.md`, ...listFiles(join(dir, "src"), [".ts"]).map((file) => `${path}/src/${file}`)],
    })),
  ];
}

function listExamples(root, path) {
  const text = readIfExists(join(root, path));
  const blocks = path.endsWith(".md") ? parseBlocks(text) : parseCommentBlocks(text);
  return blocks.map((block) => ({ ...block, path, file: `${path.replaceAll("/", ".")}.${block.line}.ts` }));
}

function readIfExists(path) {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (error.code === "ENOENT") return "";
    throw error;
  }
}

function writeTest(dir, examples) {
  mkdirSync(dir, { recursive: true });
  const helpersPath = relative(dir, fileURLToPath(new URL("example-value.ts", import.meta.url)));
  const testLines = [`import { test } from "vitest";`, `import { launch } from "${helpersPath}";`];
  for (const { path, file, info, line, code } of examples) {
    // The padding gives every line its number in the document, so that a failure points there.
    const importLine = `import { expectValue as __value, expectThrown as __thrown } from "${helpersPath}"; export {};`;
    writeFileSync(join(dir, file), importLine + "\n".repeat(line - 1) + instrumentBlock(path, line, code));
    const ranks = /\branks=(\d+)\b/.exec(info)?.[1];
    const body = ranks ? `launch(${ranks}, new URL("./${file}", import.meta.url).href)` : `import("./${file}")`;
    if (!/\bno-run\b/.test(info)) testLines.push(`test("${path}:${line}", async () => void (await ${body}));`);
  }
  if (testLines.length > 2) writeFileSync(join(dir, "examples.test.ts"), `${testLines.join("\n")}\n`);
}

function instrumentBlock(path, line, code) {
  try {
    return `${instrument(code)}\n`;
  } catch (error) {
    throw new Error(`${path}:${line}: ${error.message}`, { cause: error });
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
  console.log(`doc examples: ${generateTests(root, join(root, "build/doc-examples"))} in build/doc-examples`);
}
