#!/bin/bash
# Runs a command on a machine of four hosts, which are network namespaces n0 to n3 on a bridge: each has its own eth0
# (10.77.0.10 to .13), loopback and, by `ip netns exec`, /sys. As root, in namespaces of its own, so that nothing is left:
#
#   unshare --mount --net --propagation private bash test/hosts/hosts.sh COMMAND…
set -euo pipefail
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
for i in 0 1 2 3; do
  ip netns add "n$i"
  ip link add "v$i" type veth peer name eth0 netns "n$i"
  ip link set "v$i" master br0 up
  ip -n "n$i" address add "10.77.0.1$i/24" dev eth0
  ip -n "n$i" link set eth0 up
  ip -n "n$i" link set lo up
done
exec "$@"
