#!/bin/sh
# Stand-in for ssh: runs the command on this machine, in a clean environment as sshd does. The name of the host selects
# a failure. Its arguments are appended to $SSH_LOG.
printf '%s\n' "$*" >> "$SSH_LOG"
while :; do
  case $1 in -o | -p) shift 2 ;; -*) shift ;; *) break ;; esac
done
target=$1
command=$2
fail() { echo "$1" >&2; exit 255; }
case $target in
  unknown) fail "ssh: Could not resolve hostname unknown: Name or service not known" ;;
  denied | *@denied) fail "$target: Permission denied (publickey,password)." ;;
  untrusted) fail "Host key verification failed." ;;
  refused) fail "ssh: connect to host refused port 22: Connection refused" ;;
  silent) fail "ssh: connect to host silent port 22: Connection timed out" ;;
  odd) fail "Bad configuration option: odd" ;;
  reboots) [ "$(grep -c -- "-T reboots" "$SSH_LOG")" -eq 2 ] && fail "ssh: connect to host reboots port 22: Connection refused" ;;
  hangs) exec sleep 600 ;;
  nonode) command=$(printf '%s' "$command" | sed "s#$NODE#/missing/node#"); PATH=/missing ;;
  nolauncher) command=$(printf '%s' "$command" | sed "s#/dist/cli.js#/missing/cli.js#") ;;
  nodirectory) command=$(printf '%s' "$command" | sed "s#$PWD#/missing#") ;;
  chatty) echo "Welcome to chatty"; echo "mind the gap" >&2 ;;
esac
exec /usr/bin/env -i PATH="$PATH" HOME="$HOME" TMPDIR="$TMPDIR" MARK="$MOSAIC_RDZV_ID" /bin/sh -c "$command"
