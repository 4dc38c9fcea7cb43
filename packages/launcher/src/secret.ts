import { createHash, timingSafeEqual } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { UsageError } from "./errors.ts";

/** The variable that may hold the secret of a job on several nodes. Ranks do not inherit it. */
export const TOKEN_VARIABLE = "MOSAIC_TOKEN";
/** The variable with the path of a file that holds the secret. */
export const TOKEN_FILE_VARIABLE = "MOSAIC_TOKEN_FILE";
const MIN_SECRET_BYTES = 32;
/** The secret is part of the first frame of a connection, whose length is limited. */
const MAX_SECRET_BYTES = 1024;
const SECRET_CREATION_COMMAND = "(umask 077; openssl rand -hex 32 > token)";

/**
 * Returns the secret of a job on several nodes: the text of the file MOSAIC_TOKEN_FILE, or else the value of
 * MOSAIC_TOKEN. Throws UsageError if there is no secret, if its length is out of range, or if other users have access
 * to the file. No error message contains the secret.
 */
export function jobSecret(env: NodeJS.ProcessEnv = process.env): string {
  const file = env[TOKEN_FILE_VARIABLE] || undefined;
  const source = file === undefined ? TOKEN_VARIABLE : `${TOKEN_FILE_VARIABLE} ${file}`;
  const secret = file === undefined ? env[TOKEN_VARIABLE]?.trim() : readSecret(file);
  if (!secret)
    throw new UsageError(
      `a job on several nodes requires the same secret of at least ${MIN_SECRET_BYTES} bytes on all nodes; create it with ` +
        `${SECRET_CREATION_COMMAND} and set MOSAIC_TOKEN_FILE=token, or set MOSAIC_TOKEN to its text`,
    );
  const bytes = Buffer.byteLength(secret);
  if (bytes >= MIN_SECRET_BYTES && bytes <= MAX_SECRET_BYTES) return secret;
  throw new UsageError(
    `${source}: expected a secret of ${MIN_SECRET_BYTES} to ${MAX_SECRET_BYTES} bytes, received ${bytes} bytes; create one with ${SECRET_CREATION_COMMAND}`,
  );
}

function readSecret(file: string): string {
  try {
    if ((statSync(file).mode & 0o077) !== 0)
      throw new UsageError(
        `${TOKEN_FILE_VARIABLE} ${file}: other users have access to the secret; run chmod 600 ${file}`,
      );
    return readFileSync(file, "utf8").trim();
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw new UsageError(`${TOKEN_FILE_VARIABLE} ${file}: cannot be read: ${(error as Error).message}`);
  }
}

/**
 * Returns whether two secrets are equal. Compares digests, so that the time is independent of the secret and its
 * length.
 */
export function isSameSecret(received: unknown, expected: string): boolean {
  const digest = (secret: string): Buffer => createHash("sha256").update(secret).digest();
  return typeof received === "string" && timingSafeEqual(digest(received), digest(expected));
}
