import { type Check, gigabytes, note, ok, problem } from "../finding.ts";

/** What NCCL takes for a rank and each of its peers on a host, with room to spare. */
const FOR_NCCL = 1e9;

/** Mosaic's own collectives use none of it: their memory has no name and no file system. NCCL does. */
export const sharedMemory: Check = {
  name: "shared memory",
  async run(system) {
    const disk = system.disk("/dev/shm");
    const remedy = "start the container with --shm-size=8g or --ipc=host; on a host, mount -o remount,size=8g /dev/shm";
    const cuda = await system.ask("cuda");
    const needed = "value" in cuda && cuda.value.gpus.length > 1;
    if (disk === undefined) return [(needed ? problem : note)("there is no /dev/shm, which NCCL needs", remedy)];
    const text = `/dev/shm of ${gigabytes(disk.total)}, ${gigabytes(disk.free)} free`;
    if (disk.free >= FOR_NCCL) return [ok(text)];
    if (needed) return [problem(`${text}: NCCL fails between GPUs of this host with less than about 1 GB`, remedy)];
    return [note(`${text}: enough here, but little for NCCL`, remedy)];
  },
};
