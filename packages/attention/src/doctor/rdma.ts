import type { System } from "./system.ts";

/** One port of a network adapter that does RDMA. */
export interface RdmaPort {
  /** "mlx5_0/1" */
  readonly name: string;
  readonly isActive: boolean;
  /** "400 Gb/sec (4X NDR), InfiniBand" */
  readonly speed: string;
}

export function rdmaDevices({ list }: System): readonly string[] {
  return list("/sys/class/infiniband");
}

export function rdmaPorts(system: System): readonly RdmaPort[] {
  const { list, read } = system;
  return rdmaDevices(system).flatMap((device) => {
    const folder = `/sys/class/infiniband/${device}/ports`;
    return list(folder).map((port) => {
      const about = (what: string): string => (read(`${folder}/${port}/${what}`) ?? "unknown").trim();
      return {
        name: `${device}/${port}`,
        isActive: about("state").includes("ACTIVE"),
        speed: `${about("rate")}, ${about("link_layer")}`,
      };
    });
  });
}
