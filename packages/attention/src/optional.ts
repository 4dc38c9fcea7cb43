import { OptionError } from "@mosaic/core";

/** The exports of a package that need not be installed; an OptionError that says how to install it, if it is not. */
export async function importOptional<Exports>(from: string, where: string): Promise<Exports> {
  try {
    return (await import(from)) as Exports;
  } catch (error) {
    if (!isAbsent(error, from)) throw error;
    throw new OptionError(
      { where, expected: `the package ${from}`, received: "none", remedy: `npm install ${from}` },
      { cause: error },
    );
  }
}

/** The package itself is missing, not something that it needs. */
function isAbsent(error: unknown, from: string): boolean {
  const { code, message } = error as NodeJS.ErrnoException;
  return code === "ERR_MODULE_NOT_FOUND" && message.includes(`'${from}'`);
}
