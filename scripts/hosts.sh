#!/bin/bash
# Runs a command on a machine of hosts, which are network namespaces n0, n1, … on a bridge: each has its own eth0 (10.77.0.10, .11, …),
# loopback and, by `ip netns exec`, /sys. On the bridge they are v0, v1, …. As root, in namespaces of its own, so that nothing is left:
#
#   HOSTS=3 bash scripts/hosts.sh COMMAND…
set -euo pipefail
if [ "${MOSAIC_HOSTS_INSIDE:-}" != 1 ]; then
  MOSAIC_HOSTS_INSIDE=1 exec unshare --mount --net --propagation private -- bash "$0" "$@"
fi
unset MOSAIC_HOSTS_INSIDE
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
for ((i = 0; i < ${HOSTS:-4}; i++)); do
  ip netns add "n$i"
  ip link add "v$i" type veth peer name eth0 netns "n$i"
  ip link set "v$i" master br0 up
  ip -n "n$i" address add "10.77.0.1$i/24" dev eth0
  ip -n "n$i" link set eth0 up
  ip -n "n$i" link set lo up
done
exec "$@"
