#!/bin/bash
# Runs a command on a machine with COUNT hosts. Hosts are network namespaces n0, n1, … on a bridge. Each has its own
# eth0 (10.77.0.10, .11, …; the bridge's end of its cable is v0, v1, …), its own loopback and, with `ip netns exec`, its
# own /sys. Requires root. Everything is in separate namespaces, so that nothing remains on the machine. Processes that
# the command leaves running on the hosts are killed.
#
#   bash scripts/hosts.sh COUNT COMMAND…
set -euo pipefail
if [ "$1" != inside ]; then exec unshare --mount --net --propagation private -- bash "$0" inside "$@"; fi
count=$2; shift 2
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
kill_all() {
  for ((i = 0; i < count; i++)); do
    for pid in $(ip netns pids "n$i" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
  done
}
trap kill_all EXIT
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
for ((i = 0; i < count; i++)); do
  ip netns add "n$i"
  ip link add "v$i" type veth peer name eth0 netns "n$i"
  ip link set "v$i" master br0 up
  ip -n "n$i" addr add "10.77.0.1$i/24" dev eth0
  ip -n "n$i" link set eth0 up
  ip -n "n$i" link set lo up
done
"$@"
