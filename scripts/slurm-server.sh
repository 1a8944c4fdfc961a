#!/usr/bin/env bash
# A real Slurm on this machine for the tests of launches: a controller and one or more nodes with four CPUs
# each, regardless of the machine. Without accounting.
#
#   slurm-server.sh install                  installs Slurm and munge from Debian's packages (as root)
#   slurm-server.sh start FOLDER [NODES]     starts it on 127.0.0.1 with all its files in FOLDER (as root);
#                                            FOLDER/slurm.conf is for SLURM_CONF. One node has the name of the
#                                            machine; several are node1, node2 and so on
#   slurm-server.sh lose FOLDER NODE         kills the processes of a node, as if its machine lost its power
#   slurm-server.sh return FOLDER NODE       starts the node again
#   slurm-server.sh stop FOLDER              ends it, with its jobs
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

missing() {
  local program
  for program in slurmctld slurmd munged sbatch squeue scancel scontrol; do
    command -v "$program" > /dev/null || echo "$program"
  done
}

install() {
  local missing
  missing=$(missing | tr '\n' ' ')
  if [ -z "$missing" ]; then
    return
  fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "slurm-server: missing: $missing; install Debian's slurm-wlm and munge as root, or go without:" \
      "make test-all STORE_SERVERS=none" >&2
    exit 1
  fi
  # Services must not start on installation: Debian runs this program first.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge > /dev/null
  # Nor on the next boot.
  if command -v systemctl > /dev/null; then
    systemctl disable slurmctld slurmd munge > /dev/null 2>&1 || true
  fi
}

free_ports() {
  python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))
PYTHON
}

# configure FOLDER NODES
configure() {
  local folder=$1 count=$2 host controller ports node nodes=() number timeout=300 kill_wait=30
  host=$(uname -n)
  host=${host%%.*}
  mkdir -p "$folder/state" "$folder/spool" "$folder/run" "$folder/log"
  (umask 077 && head -c 1024 /dev/urandom > "$folder/munge.key")
  read -r controller ports <<< "$(free_ports $((count + 1)))"
  read -r -a ports <<< "$ports"
  for number in $(seq "$count"); do
    # Several daemons on one machine: `slurmd -N NAME`.
    node=node$number
    [ "$count" = 1 ] && node=$host
    nodes+=("NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[number - 1]} CPUs=4")
  done
  # A lost node is noticed after `timeout` seconds; the processes of other nodes are then killed after
  # `kill_wait` seconds.
  if [ "$count" -gt 1 ]; then
    timeout=10
    kill_wait=5
  fi
  # Credentials are valid for five seconds, which is also how long a requeued job waits.
  cat > "$folder/slurm.conf" <<CONF
ClusterName=stratus
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmdTimeout=$timeout
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=$kill_wait
$(printf '%s\n' "${nodes[@]}")
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
}

# The names of the nodes.
node_names() {
  sed -n 's/^NodeName=\([^ ]*\) .*/\1/p' "$1/slurm.conf"
}

start_node() {
  launch "$1" "slurmd-$2" slurmd -D -N "$2" -f "$1/slurm.conf"
}

check_node() {
  if ! node_names "$1" | grep -q -x -F -e "$2"; then
    echo "slurm-server: $1 has no node $2" >&2
    exit 2
  fi
}

# of_node FOLDER NODE: the processes of the jobs of a node: the variables of a process name its node, and its
# parent may be the process of Slurm that watches it.
of_node() {
  local folder=$1 node=$2 process variables parent
  for process in /proc/[0-9]*; do
    variables=$(tr '\0' '\n' 2> /dev/null < "$process/environ") || continue # it has ended
    grep -q -x -F -e "SLURM_CONF=$folder/slurm.conf" <<< "$variables" || continue
    grep -q -x -F -e "SLURMD_NODENAME=$node" <<< "$variables" || continue
    echo "${process#/proc/}"
    parent=$(sed -n 's/^PPid:\t//p' "$process/status" 2> /dev/null) || continue
    if tr '\0' ' ' 2> /dev/null < "/proc/$parent/cmdline" | grep -q '^slurmstepd'; then
      echo "$parent"
    fi
  done
}

# lose FOLDER NODE: kills the daemon of a node, and the processes of its jobs. Those of other nodes stay.
lose() {
  local folder=$1 node=$2 file processes
  check_node "$folder" "$node"
  file=$folder/run/slurmd-$node.own
  running "$file" && kill -9 "$(cat "$file")"
  rm -f "$file"
  processes=$(of_node "$folder" "$node" | sort -u)
  # shellcheck disable=SC2086 # several numbers; some may have ended
  [ -z "$processes" ] || kill -9 $processes 2> /dev/null || true
}

running() {
  [ -f "$1" ] && kill -0 "$(cat "$1")" 2> /dev/null
}

# Servers must not inherit the caller's streams, or a reader would wait for their exit.
launch() {
  local folder=$1 name=$2
  shift 2
  running "$folder/run/$name.own" && return
  setsid "$@" > "$folder/log/$name.out" 2>&1 < /dev/null &
  echo $! > "$folder/run/$name.own"
}

# start FOLDER NODES
start() {
  local folder=$1 node
  [ -f "$folder/slurm.conf" ] || configure "$folder" "$2"
  export SLURM_CONF=$folder/slurm.conf
  launch "$folder" munged munged --foreground --force --socket="$folder/run/munge" \
    --key-file="$folder/munge.key" --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged" \
    --seed-file="$folder/run/munge.seed"
  for _ in $(seq 100); do
    [ -S "$folder/run/munge" ] && break
    sleep 0.1
  done
  launch "$folder" slurmctld slurmctld -D -i -f "$SLURM_CONF"
  for node in $(node_names "$folder"); do
    start_node "$folder" "$node"
  done
  for _ in $(seq 300); do
    [ "$(sinfo -h -o %T 2> /dev/null)" = idle ] && return
    sleep 0.2
  done
  echo "slurm-server: the nodes do not become idle; see $folder/log" >&2
  exit 1
}

stop() {
  local folder=$1 file
  if running "$folder/run/slurmctld.own"; then
    export SLURM_CONF=$folder/slurm.conf
    timeout 20 scancel -Q -u "$(id -un)" || true
    for _ in $(seq 100); do
      [ -z "$(timeout 5 squeue -h 2> /dev/null)" ] && break
      sleep 0.2
    done
  fi
  for file in "$folder"/run/slurmd-*.own "$folder/run/slurmctld.own" "$folder/run/munged.own"; do
    if running "$file"; then
      kill "$(cat "$file")" 2> /dev/null || true
      for _ in $(seq 50); do
        running "$file" || break
        sleep 0.1
      done
      running "$file" && kill -9 "$(cat "$file")" 2> /dev/null || true
    fi
    rm -f "$file"
  done
}

case "${1-} $#" in
  'install 1') install ;;
  'start 2' | 'start 3')
    case ${3-1} in
      [1-9] | [1-9][0-9]) ;;
      *) echo "slurm-server: the number of nodes must be from 1 to 99" >&2; exit 2 ;;
    esac
    mkdir -p "$2" && start "$(cd "$2" && pwd)" "${3-1}"
    ;;
  'lose 3') lose "$(cd "$2" && pwd)" "$3" ;;
  'return 3') check_node "$2" "$3" && start_node "$(cd "$2" && pwd)" "$3" ;;
  'stop 2') stop "$2" ;;
  *) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
