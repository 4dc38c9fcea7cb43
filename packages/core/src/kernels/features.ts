import { checkTensor } from "../arguments.ts";
import type { KvBlock } from "../attention/state.ts";
import type { AttentionModifiers, Tile } from "../attention/tile.ts";
import type { Device } from "../device.ts";
import { OptionError, expectValue } from "../errors.ts";
import { formatShape } from "../shape.ts";
import type { KernelFeature } from "./fields.ts";

/**
 * Throws an OptionError if an attention call asks for a feature that the device does not have: what joined the contract
 * later is refused until a device has it, never ignored. The kernels `attend` and `attendBackward` of every device call this
 * first.
 *
 * @example
 * ```ts
 * import { checkFeatures } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using k = device.empty([1, 1, 8, 64], "float32");
 * const plain = { q: [], k: [], mask: [], scale: 1 };
 * checkFeatures(device, { k, v: k }, plain); // => undefined
 * checkFeatures({ type: "mine", index: 0 }, { k, v: k }, { ...plain, modifiers: { softcap: 30 } }); // throws attention on mine:0
 * ```
 */
export function checkFeatures(device: Pick<Device, "type" | "index" | "features">, kv: KvBlock, tile: Tile): void {
  for (const x of [kv?.k, kv?.v]) checkTensor("attention", x, 4);
  expectValue("attention", typeof tile === "object" && tile !== null, "a Tile", tile);
  if (tile.modifiers === undefined && kv.k.shape[3] === kv.v.shape[3]) return;
  for (const [feature, received] of requestedFeatures(kv, tile.modifiers ?? {})) {
    if (device.features?.includes(feature)) continue;
    throw new OptionError({
      where: `attention on ${device.type}:${device.index}`,
      expected: `a call without ${feature}, which this device does not have`,
      received,
      remedy: `leave it out, or use a device whose \`features\` include "${feature}"`,
    });
  }
}

function requestedFeatures({ k, v }: KvBlock, modifiers: AttentionModifiers): readonly [KernelFeature, string][] {
  const { softcap, slopes, dropout, sampleMasks } = modifiers;
  const features: [KernelFeature, string][] = [];
  if (softcap !== undefined) features.push(["softcap", `softcap ${softcap}`]);
  if (slopes) features.push(["slopes", `slopes ${formatShape(slopes.shape)}`]);
  if (dropout) features.push(["dropout", `dropout of probability ${dropout.probability}`]);
  if (sampleMasks) features.push(["sampleMasks", `sampleMasks of ${sampleMasks.length} samples`]);
  const [size, valueSize] = [k.shape[3]!, v.shape[3]!];
  if (size !== valueSize) features.push(["valueHeadSize", `keys of head size ${size}, values of ${valueSize}`]);
  return features;
}
