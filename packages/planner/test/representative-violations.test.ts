import { type AttentionBackend, local, masks, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { spreadRanks } from "../src/symmetry/translations.ts";
import { type Violation, prove, recordRepresentatives, type RecordOptions } from "../src/index.ts";
import { proveRepresentatives } from "../src/prove/prove.ts";
import { type FaultInjection, faultyRing, type Site, interceptedRing } from "./fault-injection.ts";

const RANKS = 512;
/** More than `prove` replays one by one. */
const MANY_RANKS = 2048;
const sizes = { numHeads: 2, headDim: 4, mask: masks.causal(), placement: zigzag() } as const;

/** What goes wrong at sites that are the same for every rank: its own number of steps from the source. */
function everywhere(step: number, ranks: number): (site: Site) => boolean {
  return ({ rank, source }) => (rank - source + ranks) % ranks === step;
}

const skipsTiles = (is: (site: Site) => boolean): FaultInjection => ({
  forward: (site, attend) => {
    if (!is(site)) attend();
  },
});
const skipsGradients = (is: (site: Site) => boolean): FaultInjection => ({
  backward: (site, attend) => {
    if (!is(site)) attend();
  },
});
const repeatsTiles = (is: (site: Site) => boolean): FaultInjection => ({
  forward: (site, attend) => {
    attend();
    if (is(site)) attend();
  },
});
const exchanges = (is: (site: Site) => boolean): FaultInjection => ({
  forward: (site, attend) => attend(is(site) ? { k: site.kv.v, v: site.kv.k } : undefined),
});

const faultInjections = { skipsTiles, skipsGradients, repeatsTiles, exchanges };

/** Keys and values of half the messages are exchanged. */
function swaps(is: (rank: number) => boolean): AttentionBackend {
  return interceptedRing((group, transfers) => {
    if (!is(group.rank)) return transfers;
    const sent = transfers.filter((transfer) => "to" in transfer);
    const received = transfers.filter((transfer) => "from" in transfer);
    return [...sent.toReversed(), ...received];
  });
}

/** All receive before they send. */
function circle(ranks: number): AttentionBackend {
  const right = local();
  return {
    ...right,
    name: "circle",
    axes: ["sp"],
    attend(ctx, call, state, kv) {
      const group = ctx.mesh.group("sp");
      using next = ctx.device.empty(kv.k.shape, kv.k.dtype);
      group.sendRecv([{ tensor: next, from: (group.rank + ranks - 1) % ranks }]).wait();
      group.sendRecv([{ tensor: kv.k, to: (group.rank + 1) % ranks }]).wait();
      right.attend(ctx, call, state, kv);
    },
  };
}

function createCall(backend: AttentionBackend, ranks: number): RecordOptions {
  return { ...sizes, backend, mesh: { sp: ranks }, tokens: 4 * ranks };
}

const kinds = (violations: readonly Violation[]): Set<string> => new Set(violations.map(({ kind }) => kind));

for (const [name, meddling] of Object.entries(faultInjections)) {
  test(`a tile that every rank ${name} is found among ${RANKS} ranks, of the kinds found among 16`, () => {
    const [few, many] = [16, RANKS].map((ranks) => {
      const run = recordRepresentatives(createCall(faultyRing(meddling(everywhere(3, ranks))), ranks));
      expect(run.ranks.length).toBe(1);
      return proveRepresentatives(run, 1000, []);
    });
    const all = prove(recordRepresentatives(createCall(faultyRing(meddling(everywhere(3, 16))), 16)), { limit: 1000 });
    expect(all.replayed).toBe(16);
    expect(all.total).toBeGreaterThan(0);
    expect(kinds(few!.violations)).toEqual(kinds(all.violations));
    expect(kinds(many!.violations)).toEqual(kinds(all.violations));
    expect(few!.total).toBe(all.total);
  }, 120_000);

  test(`a tile that a single rank ${name} is found where all are compared with their representative`, () => {
    const backend = faultyRing(meddling(({ rank, source }) => rank === 11 && source === 8));
    const run = recordRepresentatives(createCall(backend, 16));
    expect(prove(run).total).toBeGreaterThan(0);
    const proof = proveRepresentatives(run, 10, spreadRanks(16, 16));
    expect(proof.total).toBeGreaterThan(0);
  });
}

test(`keys sent for values by all of ${MANY_RANKS} ranks are found, and by one of 16`, () => {
  expect(
    prove(
      recordRepresentatives(
        createCall(
          swaps(() => true),
          MANY_RANKS,
        ),
      ),
    ).total,
  ).toBeGreaterThan(0);
  const run = recordRepresentatives(
    createCall(
      swaps((rank) => rank === 5),
      16,
    ),
  );
  expect(prove(run).total).toBeGreaterThan(0);
  expect(proveRepresentatives(run, 10, spreadRanks(16, 16)).total).toBeGreaterThan(0);
}, 120_000);

test(`${MANY_RANKS} ranks that wait for one another in a circle are found`, () => {
  const { violations } = prove(recordRepresentatives(createCall(circle(MANY_RANKS), MANY_RANKS)));
  expect(kinds(violations)).toEqual(new Set(["cycle"]));
}, 120_000);
