#!/bin/bash
# A real SLURM cluster on one machine. `cluster.sh COMMAND…`, as root, runs a command on its login node. Three nodes, n0
# to n2, are namespaces on a bridge, each with its own network, /sys, /tmp, host name and slurmd. All files, including
# those of installed packages, are in an overlay in memory, and all processes are in a pid namespace, so that nothing
# remains on the machine.
set -euo pipefail
self=$(readlink -f "$0")
repository=$(cd "$(dirname "$self")/../../../.." && pwd)
packages=(slurmctld slurmd slurm-client munge openmpi-bin mpich libucx0)

# start_inside COMMAND… -- starts the daemons and then the command, in the overlay and the namespaces.
start_inside() {
  mount -t proc proc /proc
  own_sys
  mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/munge /etc/slurm /var/spool/slurmctld /var/log/slurm
  head -c 1024 /dev/urandom > /etc/munge/munge.key
  chmod 400 /etc/munge/munge.key
  chmod 755 /run/munge
  chown -R munge:munge /run/munge /var/log/munge /var/lib/munge /etc/munge
  setpriv --reuid=munge --regid=munge --clear-groups munged --force 2> /var/log/munge/start.log
  printf '127.0.0.1 localhost\n10.77.0.254 ctl\n10.77.0.10 n0\n10.77.0.11 n1\n10.77.0.12 n2\n' > /etc/hosts
  printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' > /etc/slurm/cgroup.conf
  write_configuration > /etc/slurm/slurm.conf
  hostname ctl
  ip link set lo up
  ip link add br0 type bridge
  ip addr add 10.77.0.254/24 dev br0
  ip link set br0 up
  slurmctld
  for i in 0 1 2; do start_node $i; done
  for _ in $(seq 100); do [ "$(sinfo -h -N -t idle | wc -l)" = 3 ] && break; sleep 0.1; done
  [ "$(sinfo -h -N -t idle | wc -l)" = 3 ] || { sinfo -N -l; tail /var/log/slurm/*.log; exit 1; }
  "$@"
}

write_configuration() {
  cat <<'C'
ClusterName=test
SlurmctldHost=ctl
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd.%n
SlurmdPidFile=/run/slurmd.%n.pid
SlurmdLogFile=/var/log/slurm/slurmd.%n.log
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdTimeout=10
KillWait=5
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,requeue_setup_env_fail
NodeName=n[0-2] NodeAddr=10.77.0.[10-12] CPUs=4 RealMemory=500 State=UNKNOWN
PartitionName=p Nodes=n[0-2] Default=YES MaxTime=INFINITE State=UP
C
}

# Mounts a /sys for the network namespace, and creates the directories in which SLURM expects cgroups.
own_sys() {
  mount -t sysfs sysfs /sys
  mount -t tmpfs tmpfs /sys/fs/cgroup
  mkdir -p /sys/fs/cgroup/{freezer,memory,cpuset,cpuacct,devices}
}

start_node() {
  local i=$1 pid
  unshare -m -n -u --propagation private --fork --kill-child bash -c "own_sys; mount -t tmpfs tmpfs /tmp; hostname n$i; echo \$\$ > /run/n$i; exec sleep infinity" &
  for _ in $(seq 100); do [ -s /run/n$i ] && break; sleep 0.05; done
  pid=$(cat /run/n$i)
  ip link add v$i type veth peer name eth0 netns "$pid"
  ip link set v$i master br0 up
  nsenter -t "$pid" -n bash -c "ip link set lo up; ip addr add 10.77.0.1$i/24 dev eth0; ip link set eth0 up"
  mkdir -p /var/spool/slurmd.n$i
  on_node $i slurmd -N n$i
}

# on_node I COMMAND… -- runs a command in the namespaces of node I.
on_node() {
  local i=$1; shift
  nsenter -t "$(cat /run/n$i)" -m -n -u -r -w "$@"
}

export -f own_sys on_node
if [ "${1:-}" = inside ]; then shift; start_inside "$@"; exit; fi
if [ "${1:-}" != mounted ]; then exec unshare --mount --propagation private -- "$self" mounted "$@"; fi
shift
root=$(mktemp -d)
mount -t tmpfs -o size=3g tmpfs "$root"
mkdir "$root"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/root"
mount --rbind /dev "$root/root/dev"
# If the repository or Node are on separate file systems, the overlay does not contain them, so they are mounted.
for directory in "$repository" "$(dirname "$(dirname "$(readlink -f "$(command -v node)")")")"; do
  [ "$(findmnt -nT "$directory" -o TARGET)" = / ] || { mkdir -p "$root/root$directory"; mount --bind "$directory" "$root/root$directory"; }
done
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q ' installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}, not on this machine but in an overlay of it"
  printf '#!/bin/sh\nexit 101\n' > "$root/root/usr/sbin/policy-rc.d"
  chmod +x "$root/root/usr/sbin/policy-rc.d"
  chroot "$root/root" bash -c "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq --no-install-recommends ${missing[*]}" > "$root/apt.log" 2>&1 ||
    { cat "$root/apt.log"; exit 1; }
fi
status=0
# SIGKILL, because the init process of a pid namespace ignores SIGTERM.
timeout -s KILL "${LIMIT_S:-240}" unshare -p -n -u -f --kill-child chroot "$root/root" "$self" inside "$@" || status=$?
umount -l "$root"
rmdir "$root"
exit $status
