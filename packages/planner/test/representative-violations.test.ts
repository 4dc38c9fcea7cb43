import { type AttentionBackend, local, masks, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { spreadRanks } from "../src/symmetry/translations.ts";
import { type Violation, prove, recordRepresentatives, type RecordOptions } from "../src/index.ts";
import { proveRepresentatives } from "../src/prove/prove.ts";
import { type FaultInjection, faultyRing, type Site, interceptedRing } from "./fault-injection.ts";

const RANKS = 512;
/** More ranks than `prove` replays one by one. */
const MANY_RANKS = 2048;
const sizes = { numHeads: 2, headDim: 4, mask: masks.causal(), placement: zigzag() } as const;

/** Selects sites that are the same for every rank: those with this number of steps from the source. */
function matchesStep(step: number, ranks: number): (site: Site) => boolean {
  return ({ rank, source }) => (rank - source + ranks) % ranks === step;
}

const skipsTiles = (isFaultSite: (site: Site) => boolean): FaultInjection => ({
  forward: (site, attend) => {
    if (!isFaultSite(site)) attend();
  },
});
const skipsGradients = (isFaultSite: (site: Site) => boolean): FaultInjection => ({
  backward: (site, attend) => {
    if (!isFaultSite(site)) attend();
  },
});
const repeatsTiles = (isFaultSite: (site: Site) => boolean): FaultInjection => ({
  forward: (site, attend) => {
    attend();
    if (isFaultSite(site)) attend();
  },
});
const exchanges = (isFaultSite: (site: Site) => boolean): FaultInjection => ({
  forward: (site, attend) => attend(isFaultSite(site) ? { k: site.kv.v, v: site.kv.k } : undefined),
});

const faultInjections = { skipsTiles, skipsGradients, repeatsTiles, exchanges };

/** Swaps keys and values in the messages that faulty ranks send. */
function swapSentTensors(isFaultyRank: (rank: number) => boolean): AttentionBackend {
  return interceptedRing((group, transfers) => {
    if (!isFaultyRank(group.rank)) return transfers;
    const sends = transfers.filter((transfer) => "to" in transfer);
    const receives = transfers.filter((transfer) => "from" in transfer);
    return [...sends.toReversed(), ...receives];
  });
}

/** Creates a backend in which all ranks receive before they send. */
function createCyclicBackend(ranks: number): AttentionBackend {
  const localBackend = local();
  return {
    ...localBackend,
    name: "circle",
    axes: ["sp"],
    attend(ctx, call, state, kv) {
      const group = ctx.mesh.group("sp");
      using receiveBuffer = ctx.device.empty(kv.k.shape, kv.k.dtype);
      group.sendRecv([{ tensor: receiveBuffer, from: (group.rank + ranks - 1) % ranks }]).wait();
      group.sendRecv([{ tensor: kv.k, to: (group.rank + 1) % ranks }]).wait();
      localBackend.attend(ctx, call, state, kv);
    },
  };
}

function createCall(backend: AttentionBackend, ranks: number): RecordOptions {
  return { ...sizes, backend, mesh: { sp: ranks }, tokens: 4 * ranks };
}

const listKinds = (violations: readonly Violation[]): Set<string> => new Set(violations.map(({ kind }) => kind));

for (const [name, createFaults] of Object.entries(faultInjections)) {
  test(`the fault ${name} of every rank is reported among ${RANKS} ranks with the same kinds as among 16`, () => {
    const [smallProof, largeProof] = [16, RANKS].map((ranks) => {
      const attentionRecord = recordRepresentatives(createCall(faultyRing(createFaults(matchesStep(3, ranks))), ranks));
      expect(attentionRecord.ranks.length).toBe(1);
      return proveRepresentatives(attentionRecord, 1000, []);
    });
    const fullProof = prove(recordRepresentatives(createCall(faultyRing(createFaults(matchesStep(3, 16))), 16)), {
      limit: 1000,
    });
    expect(fullProof.replayed).toBe(16);
    expect(fullProof.total).toBeGreaterThan(0);
    expect(listKinds(smallProof!.violations)).toEqual(listKinds(fullProof.violations));
    expect(listKinds(largeProof!.violations)).toEqual(listKinds(fullProof.violations));
    expect(smallProof!.total).toBe(fullProof.total);
  }, 300_000);

  test(`the fault ${name} of a single rank is reported if all ranks are compared with their representative`, () => {
    const backend = faultyRing(createFaults(({ rank, source }) => rank === 11 && source === 8));
    const attentionRecord = recordRepresentatives(createCall(backend, 16));
    expect(prove(attentionRecord).total).toBeGreaterThan(0);
    const proof = proveRepresentatives(attentionRecord, 10, spreadRanks(16, 16));
    expect(proof.total).toBeGreaterThan(0);
  });
}

test(`swapped keys and values are reported if all of ${MANY_RANKS} ranks send them, or one of 16`, () => {
  const recordSwaps = (isFaulty: (rank: number) => boolean, ranks: number) =>
    recordRepresentatives(createCall(swapSentTensors(isFaulty), ranks));
  expect(listKinds(prove(recordSwaps(() => true, MANY_RANKS)).violations)).toEqual(new Set(["data"]));
  const attentionRecord = recordSwaps((rank) => rank === 5, 16);
  expect(listKinds(prove(attentionRecord).violations)).toEqual(new Set(["data"]));
  expect(listKinds(proveRepresentatives(attentionRecord, 10, spreadRanks(16, 16)).violations)).toEqual(
    new Set(["class"]),
  );
}, 300_000);

test(`a cycle of ${MANY_RANKS} waiting ranks is reported`, () => {
  const { violations } = prove(recordRepresentatives(createCall(createCyclicBackend(MANY_RANKS), MANY_RANKS)));
  expect(listKinds(violations)).toEqual(new Set(["cycle"]));
}, 300_000);
