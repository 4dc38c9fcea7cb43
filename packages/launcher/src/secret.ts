import { createHash, timingSafeEqual } from "node:crypto";

/** Compares digests, so that the time taken is independent of the secret and its length. */
export function sameSecret(received: unknown, expected: string): boolean {
  const digest = (secret: string): Buffer => createHash("sha256").update(secret).digest();
  return typeof received === "string" && timingSafeEqual(digest(received), digest(expected));
}
