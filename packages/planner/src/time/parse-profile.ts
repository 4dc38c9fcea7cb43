import { checkOptionNames, dtypeBytes, OptionError, formatValue } from "@mosaic/core";
import { linkClasses, type Profile } from "./profile.ts";

/**
 * Reads a profile from JSON text, or checks one that is an object already.
 *
 * @example
 * ```ts
 * import { parseProfile, profiles } from "@mosaic/planner";
 * const mine = { ...profiles["h100-ib400"], name: "mine", ranksPerNode: 4 };
 * parseProfile(JSON.stringify(mine)).ranksPerNode; // => 4
 * ```
 * @throws OptionError that names the first field that is missing, unknown, or not what it should be.
 */
export function parseProfile(profile: string | Profile): Profile {
  const parsed = typeof profile === "string" ? parseJson(profile) : profile;
  return new Checker(fields("profile", parsed)["name"]).profile(parsed);
}

function parseJson(text: string): Profile {
  try {
    return JSON.parse(text) as Profile;
  } catch (error) {
    throw new OptionError({ where: "profile", expected: "JSON", received: (error as Error).message });
  }
}

/** What a number may be. */
type Range = "> 0" | "≥ 0" | "0 to 1" | "whole, ≥ 1";

const inRange: Readonly<Record<Range, (x: number) => boolean>> = {
  "> 0": (x) => x > 0,
  "≥ 0": (x) => x >= 0,
  "0 to 1": (x) => x >= 0 && x < 1,
  "whole, ≥ 1": (x) => Number.isSafeInteger(x) && x >= 1,
};

/** Checks every field of a profile; its errors name the profile. */
class Checker {
  readonly #name: string;

  constructor(name: unknown) {
    if (typeof name !== "string" || name === "") {
      throw new OptionError({ where: "profile: name", expected: "a name", received: String(name) });
    }
    this.#name = name;
  }

  profile(profile: Profile): Profile {
    const known = [
      "name",
      "ranksPerNode",
      "links",
      "kernels",
      "enqueue",
      "communicationTax",
      "collectives",
      "channels",
    ];
    checkOptionNames(this.#where(""), profile, [...known, "cores"]);
    this.#number("ranksPerNode", profile.ranksPerNode, "whole, ≥ 1");
    this.#number("enqueue", profile.enqueue, "≥ 0");
    this.#number("communicationTax", profile.communicationTax, "0 to 1");
    this.#oneOf("collectives", profile.collectives, ["direct", "ring"]);
    this.#oneOf("channels", profile.channels, ["rank", "group"]);
    this.#links(profile.links);
    this.#kernels(profile.kernels);
    if (profile.cores !== undefined) {
      this.#names("cores", profile.cores, ["perNode"]);
      this.#number("cores.perNode", profile.cores.perNode, "> 0");
    }
    return profile;
  }

  #links(links: Profile["links"]): void {
    this.#names("links", links, linkClasses);
    for (const kind of linkClasses) {
      const [path, link] = [`links.${kind}`, links[kind]];
      this.#names(path, link, ["latency", "bandwidth", "sharedBy", "duplex"]);
      this.#number(`${path}.latency`, link.latency, "≥ 0");
      this.#number(`${path}.bandwidth`, link.bandwidth, "> 0");
      this.#number(`${path}.sharedBy`, link.sharedBy, "whole, ≥ 1");
      if (typeof link.duplex !== "boolean") this.#fail(`${path}.duplex`, "true or false", link.duplex);
    }
  }

  #kernels(kernels: Profile["kernels"]): void {
    this.#names("kernels", kernels, ["launch", "bandwidth", "matmul", "attend", "attendBackward", "waves"]);
    this.#number("kernels.launch", kernels.launch, "≥ 0");
    this.#number("kernels.bandwidth", kernels.bandwidth, "> 0");
    this.#number("kernels.matmul", kernels.matmul, "> 0");
    for (const kind of ["attend", "attendBackward"] as const) {
      this.#names(`kernels.${kind}`, kernels[kind], Object.keys(dtypeBytes));
      for (const [dtype, speed] of Object.entries(kernels[kind])) {
        const path = `kernels.${kind}.${dtype}`;
        this.#names(path, speed, ["flops", "halfRows", "halfKeys", "halfDim", "interleaved"]);
        this.#number(`${path}.flops`, speed.flops, "> 0");
        for (const half of ["halfRows", "halfKeys", "halfDim"] as const) {
          this.#number(`${path}.${half}`, speed[half], "≥ 0");
        }
        if (speed.interleaved !== undefined) this.#number(`${path}.interleaved`, speed.interleaved, "> 0");
      }
    }
    if (kernels.waves === undefined) return;
    this.#names("kernels.waves", kernels.waves, ["units", "rows"]);
    this.#number("kernels.waves.units", kernels.waves.units, "whole, ≥ 1");
    this.#number("kernels.waves.rows", kernels.waves.rows, "whole, ≥ 1");
  }

  #names(path: string, value: unknown, allowed: readonly string[]): void {
    checkOptionNames(this.#where(path), fields(this.#where(path), value), allowed);
  }

  #number(path: string, value: unknown, range: Range): void {
    if (typeof value !== "number" || !Number.isFinite(value) || !inRange[range](value)) {
      this.#fail(path, `a number ${range}`, value);
    }
  }

  #oneOf(path: string, value: unknown, allowed: readonly string[]): void {
    if (!allowed.includes(value as string)) this.#fail(path, allowed.map((word) => `"${word}"`).join(" or "), value);
  }

  #fail(path: string, expected: string, value: unknown): never {
    throw new OptionError({
      where: this.#where(path),
      expected,
      received: value === undefined ? "nothing" : formatValue(value),
    });
  }

  #where(path: string): string {
    return path === "" ? `profile ${this.#name}` : `profile ${this.#name}: ${path}`;
  }
}

function fields(where: string, value: unknown): Readonly<Record<string, unknown>> {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new OptionError({
    where,
    expected: "an object",
    received: value === undefined ? "nothing" : formatValue(value),
  });
}
