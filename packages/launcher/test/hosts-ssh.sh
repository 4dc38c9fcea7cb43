#!/bin/bash
# Tests `mosaic-run --hosts` over OpenSSH, as root. Each host is a network namespace with an sshd. Part of `npm run
# test:hosts`. It requires sshd (apt-get install openssh-server). Keys, ports and files are used only by this test and
# removed at its end.
set -euo pipefail
if [ ! -x /usr/sbin/sshd ]; then echo "left out: no /usr/sbin/sshd (apt-get install openssh-server)"; exit 0; fi
if [ "${1:-}" != inside ]; then exec unshare --mount --net --propagation private -- "$0" inside; fi
here=$(cd "$(dirname "$0")" && pwd)
run=$here/../dist/cli.js
program=$here/programs/node.mjs
export TEST_INDEX=$here/../dist/index.js
work=$(mktemp -d)
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/sshd
export TMPDIR=$work
cleanup() {
  for host in 0 1 2; do for pid in $(ip netns pids n$host 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done; done
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work"
chmod 755 "$work"
cp /etc/hosts hosts
for i in 0 1 2; do echo "10.77.0.1$i n$i" >> hosts; done
mount --bind hosts /etc/hosts
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
ip addr add 10.77.0.254/24 dev br0
ip addr add fd77::fe/64 dev br0 nodad
for key in host user other; do ssh-keygen -q -t ed25519 -N "" -f $key; done
ssh="ssh -p 2222 -i $work/user -o UserKnownHostsFile=$work/known -o IdentitiesOnly=yes"
cat > sshd_config <<CONFIG
Port 2222
HostKey $work/host
AuthorizedKeysFile $work/user.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
PidFile none
CONFIG
for i in 0 1 2; do
  ip netns add n$i
  ip link add v$i type veth peer name eth0 netns n$i
  ip link set v$i master br0 up
  ip -n n$i addr add 10.77.0.1$i/24 dev eth0
  ip -n n$i addr add fd77::1$i/64 dev eth0 nodad
  ip -n n$i link set eth0 up
  ip -n n$i link set lo up
  ip netns exec n$i /usr/sbin/sshd -D -f "$work/sshd_config" -E "$work/sshd$i.log" & disown
  for name in "[n$i]" "[10.77.0.1$i]" "[fd77::1$i]"; do echo "$name:2222 $(cut -d' ' -f1-2 host.pub)" >> known; done
done
for i in 0 1 2; do
  for _ in $(seq 100); do if grep -qs "listening on 0.0.0.0" sshd$i.log; then break; fi; sleep 0.05; done
done

# start NAME [options] -- starts `mosaic-run` on the machine itself, which is not one of the hosts. Its output, process
# id and exit code are written to NAME.out, NAME.pid and NAME.code.
start() {
  local name=$1; shift
  (node "$run" --ssh "$ssh" "$@" > "$name.out" 2>&1 & echo $! > "$name.pid"; code=0; wait $! || code=$?; echo $code > "$name.code") 2> /dev/null &
}
wait_for() { # FILE TEXT
  for _ in $(seq 300); do if grep -qs -- "$2" "$1"; then return; fi; sleep 0.05; done
  echo "not in $1: $2"; cat "$1"; exit 1
}
expect_code() { # NAME CODE
  for _ in $(seq 600); do [ -s "$1.code" ] && break; sleep 0.05; done
  [ "$(cat "$1.code" 2>/dev/null)" = "$2" ] || { echo "$1 exited with $(cat "$1.code"), expected $2"; cat "$1.out"; exit 1; }
}
left_on() { # HOST: its processes that are not sshd's
  for pid in $(ip netns pids n"$1"); do [ "$(cat /proc/"$pid"/comm 2>/dev/null)" = sshd ] || echo "$pid"; done
}
expect_none_left() {
  for host in 0 1 2; do
    for _ in $(seq 100); do [ -z "$(left_on $host)" ] && break; sleep 0.05; done
    [ -z "$(left_on $host)" ] || { echo "processes left on n$host"; left_on $host | xargs ps -fp; exit 1; }
  done
}
milliseconds() { date +%s%3N; }

began=$(milliseconds)
start a --hosts n0:3,n1:2,n2:1 --env TEST_INDEX "$program"
wait_for a.out "^\[n0:0\] attempt 0: 0 0 6 3 0 3 10.77.0.10"
first=$(( $(milliseconds) - began ))
expect_code a 0
wait_for a.out "^\[n1:4\] attempt 0: 4 1 6 2 1 3 10.77.0.10"
wait_for a.out "^\[n2:5\] attempt 0: 5 0 6 1 2 3 10.77.0.10"
expect_none_left
echo "ok: 3 hosts with 3, 2 and 1 ranks over ssh; first line after $first ms"

(code=0; ip netns exec n0 node "$run" --ssh "$ssh" --hosts 10.77.0.10,n1 -n 1 --env TEST_INDEX "$program" exits 1 > b.out 2>&1 || code=$?
  echo $code > b.code)
expect_code b 42
wait_for b.out "✖ rank 1 (node 1: n1, local 0"
expect_none_left
echo "ok: the first host is the launcher's own; a failing rank ends all with its code"

printf '%s\n' "root@[fd77::10] # by address" "[fd77::11] slots=2" > hostfile
start c --hostfile hostfile -n 1 --env TEST_INDEX "$program"
expect_code c 0
wait_for c.out "^\[fd77::11:2\] attempt 0: 2 1 3 2 1 2 fd77::10"
echo "ok: addresses of IPv6, from a file"

secret=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export MOSAIC_TOKEN=$secret FORWARDED=forwarded-$secret
start d --hosts n0,n1,n2 -n 2 --env TEST_INDEX --env FORWARDED "$program" waits
unset MOSAIC_TOKEN FORWARDED
for i in 0 2 4; do wait_for d.out "rank $i waits"; done
echo "$secret" > pattern   # grep's own command line must not have it
for host in 0 1 2; do
  [ "$(left_on $host | wc -l)" -ge 5 ] || { echo "hardly a process on n$host"; exit 1; }
  for pid in $(ip netns pids n$host); do
    # Variables of --env must be set only in ranks, not in sshd, shells and agents.
    if tr '\0' '\n' < /proc/"$pid"/environ | grep -v ^FORWARDED= | grep -qf pattern; then echo "the secret is in an environment"; exit 1; fi
  done
done
if cat /proc/[0-9]*/cmdline 2>/dev/null | grep -aqf pattern; then echo "the secret is in a command line"; exit 1; fi
kill -9 "$(cat d.pid)"
expect_none_left
if grep -qf pattern ./*.out ./*.log; then echo "the secret is in a log"; exit 1; fi
echo "ok: secret and environment are in no command line; SIGKILL of the launcher leaves no process on any host"

start e --hosts n0,n1 -n 1 --env TEST_INDEX "$program" waits
wait_for e.out "rank 1 waits"
cut=$(milliseconds)
ip link set v1 down
wait_for e.out "✖ node 1 (n1) was lost\|✖ node 1 (.*) was lost"
found=$(( $(milliseconds) - cut ))
expect_code e 75
ended=$(( $(milliseconds) - cut ))
expect_none_left
ip link set v1 up
[ $found -lt 3500 ] && [ $ended -lt 30000 ] || { echo "the cut was found after $found ms, the launcher ended after $ended ms"; exit 1; }
echo "ok: a cut cable is found after $found ms, the launcher ends after $ended ms; nothing is left on either side"

start f --hosts n0,n1 -n 1 --rdzv-endpoint late:29400 --env TEST_INDEX "$program"
wait_for f.out "waiting for name resolution: --rdzv-endpoint late: cannot be resolved"
wait_for f.out "host n1: waiting for node 0 at late:29400: getaddrinfo"
echo "10.77.0.10 late" >> hosts
expect_code f 0
echo "ok: a name that appears late"

# The firewall rules of docs/clusters.md, with the addresses of these hosts and the port of sshd.
if [ -x /usr/sbin/nft ]; then
  sed -n '/^```nft/,/^```/p' "$here/../../../docs/clusters.md" | grep -v '```' | sed 's#10.1.0.0/16#10.77.0.0/24#; s/{ 22,/{ 2222,/' > rules
  grep -q "2222, 29400" rules
  for i in 0 1 2; do ip netns exec n$i /usr/sbin/nft -f rules; done
  start m --hosts n0,n1,n2 -n 1 --env TEST_INDEX "$program"
  expect_code m 0
  start o --hosts n0,n1 -n 1 --rdzv-endpoint n0:29401 --rdzv-timeout 3s --env TEST_INDEX "$program"
  expect_code o 75
  wait_for o.out "rendezvous timed out after 3 s: 1/2 nodes; missing n1"
  for i in 0 1 2; do ip netns exec n$i /usr/sbin/nft flush ruleset; done
  echo "ok: behind a firewall that passes ssh and one port; with another port the rendezvous times out"
else
  echo "left out: the firewall's rules, for there is no nft"
fi

# failing NAME CODE TEXT [options] -- the failure is reported with a remedy within 12 s, and no process is left.
failing() {
  local name=$1 code=$2 text=$3; shift 3
  local began; began=$(milliseconds)
  start "$name" "$@" -n 1 --env TEST_INDEX "$program"
  expect_code "$name" "$code"
  local took=$(( $(milliseconds) - began ))
  wait_for "$name.out" "$text"
  expect_none_left
  [ $took -lt 12000 ] || { echo "$name took $took ms"; exit 1; }
  echo "ok: after $took ms: $(head -1 "$name.out" | cut -c1-150)"
}
failing g 2 "host nowhere: unknown host (ssh: Could not resolve hostname nowhere: .*); correct the host name" --hosts n0,nowhere
failing h 2 "permission denied (.*Permission denied (publickey.*); set up ssh login without a password" --hosts n0,n1 --ssh "${ssh/$work\/user/$work/other}"
failing i 2 "host key verification failed (Host key verification failed.*); log in once interactively and verify the key" --hosts n0,n1 --ssh "${ssh/known/none}"
failing j 75 "connection refused (ssh: connect to host n[01] port 2223: Connection refused)" --hosts n0,n1 --ssh "${ssh/2222/2223}"
failing k 75 "host 10.77.0.99: cannot connect (ssh: connect to host 10.77.0.99 port 2222: .*)" --hosts n0,10.77.0.99
# Node is hidden only on n2, which has a separate mount namespace.
for pid in $(ip netns pids n2); do kill "$pid"; done
ip netns exec n2 sh -c "mount --bind /dev/null '$(readlink -f "$(command -v node)")'; exec /usr/sbin/sshd -D -f '$work/sshd_config' -E '$work/sshd3.log'" & disown
wait_for sshd3.log "listening on 0.0.0.0"
failing l 2 "host n2: Node is missing; install Node there as " --hosts n0,n2
