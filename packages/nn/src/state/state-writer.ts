// Writes the tensors of a checkpoint: either from copies that are made at the call, or a chunk at a time.
import { type HostTensor, OptionError } from "@mosaic/core";
import { toBytes } from "../safetensors/read.ts";
import type { StagedFile } from "../safetensors/staged-file.ts";
import {
  compareTensors,
  stageSafetensors,
  stageValues,
  type TensorDescription,
  type WriteBytes,
} from "../safetensors/write.ts";
import { gatherShard } from "../sharding/flat-parameters.ts";
import type { ShardedEntry } from "../sharding/sharded-state.ts";
import { readChunks } from "../sharding/tensor-chunks.ts";

/** Arguments of a file other than its tensors. */
export interface FileToStage {
  readonly path: string;
  readonly metadata: Readonly<Record<string, string>>;
  /** Called with all bytes, in order. */
  readonly onWrite?: ((bytes: Uint8Array) => void) | undefined;
}

/** Writes the tensors of a state. */
export interface StateWriter {
  /** Writes the file under a temporary name, on one rank or on several. */
  stage(file: FileToStage): Promise<StagedFile>;
  /** Takes part in the communication of `stage`, on ranks that write nothing. */
  participate(): Promise<void>;
}

/** Writes tensors that are on the host. */
export class SnapshotWriter implements StateWriter {
  readonly #tensors: Promise<ReadonlyMap<string, HostTensor>>;

  constructor(tensors: Promise<ReadonlyMap<string, HostTensor>>) {
    this.#tensors = tensors;
  }

  async stage({ path, metadata, onWrite }: FileToStage): Promise<StagedFile> {
    return stageSafetensors(path, await this.#tensors, metadata, onWrite);
  }

  async participate(): Promise<void> {}
}

/** Writes tensors a chunk at a time. Sharded tensors are gathered one after the other, on all ranks. */
export class ChunkWriter implements StateWriter {
  readonly #where: string;
  /** In the order of the file, with the versions of their memory at the call. */
  readonly #tensors: readonly (ShardedEntry & TensorDescription & { readonly version: number })[];

  constructor(where: string, entries: readonly ShardedEntry[]) {
    this.#where = where;
    const tensors = entries.map((entry) => ({
      ...entry,
      dtype: entry.tensor.dtype,
      shape: entry.shard?.parameter.shape ?? entry.tensor.shape,
      version: entry.tensor.storage.version,
    }));
    this.#tensors = tensors.sort(compareTensors);
  }

  async stage({ path, metadata, onWrite }: FileToStage): Promise<StagedFile> {
    let hasGathered = false;
    const writeValues = async (write: WriteBytes): Promise<void> => {
      hasGathered = true;
      await this.#gatherAll(write);
    };
    try {
      return await stageValues(path, this.#tensors, metadata, { onWrite, writeValues });
    } catch (error) {
      // The other ranks gather all tensors.
      if (!hasGathered) await this.participate();
      throw error;
    }
  }

  participate(): Promise<void> {
    return this.#gatherAll();
  }

  /**
   * Gathers one tensor after the other, and writes each if `write` is passed. After a failure, the remaining tensors are
   * gathered, too, because the other ranks gather them.
   */
  async #gatherAll(write?: WriteBytes): Promise<void> {
    const failures: unknown[] = [];
    for (const { name, dtype, shard, tensor, version } of this.#tensors) {
      const fullTensor = shard ? gatherShard(shard, tensor) : tensor;
      try {
        if (write && failures.length === 0) {
          for await (const values of readChunks(fullTensor)) await write(toBytes(dtype, values));
        }
        // Ranks that write nothing gather no further ahead than one tensor.
        if (shard) await tensor.device.stream.synchronize();
        if (tensor.storage.version !== version) throw this.#createModificationError(name);
      } catch (error) {
        failures.push(error);
      } finally {
        if (shard) fullTensor.dispose();
      }
    }
    if (failures.length > 0) throw failures[0];
  }

  #createModificationError(name: string): OptionError {
    return new OptionError({
      where: this.#where,
      expected: "parameters and optimizer states that do not change before the promise resolves",
      received: `"${name}", which was modified meanwhile`,
      remedy: "await saveCheckpoint before the next step",
    });
  }
}
