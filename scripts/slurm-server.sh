#!/usr/bin/env bash
# A real Slurm on this machine for the tests of launches: a controller and one node with four CPUs,
# regardless of the machine. Without accounting.
#
#   slurm-server.sh install        installs Slurm and munge from Debian's packages (as root)
#   slurm-server.sh start FOLDER   starts it on 127.0.0.1 with all its files in FOLDER (as root);
#                                  FOLDER/slurm.conf is for SLURM_CONF
#   slurm-server.sh stop FOLDER    ends it, with its jobs
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

configure() {
  local folder=$1 host controller node
  host=$(uname -n)
  host=${host%%.*}
  mkdir -p "$folder/state" "$folder/spool" "$folder/run" "$folder/log"
  (umask 077 && head -c 1024 /dev/urandom > "$folder/munge.key")
  read -r controller node <<< "$(free_ports 2)"
  # Credentials are valid for five seconds, which is also how long a requeued job waits.
  cat > "$folder/slurm.conf" <<CONF
ClusterName=stratus
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmdPort=$node
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
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
KillWait=30
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
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

start() {
  local folder=$1
  [ -f "$folder/slurm.conf" ] || configure "$folder"
  export SLURM_CONF=$folder/slurm.conf
  launch "$folder" munged munged --foreground --force --socket="$folder/run/munge" \
    --key-file="$folder/munge.key" --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged" \
    --seed-file="$folder/run/munge.seed"
  for _ in $(seq 100); do
    [ -S "$folder/run/munge" ] && break
    sleep 0.1
  done
  launch "$folder" slurmctld slurmctld -D -i -f "$SLURM_CONF"
  launch "$folder" slurmd slurmd -D -f "$SLURM_CONF"
  for _ in $(seq 300); do
    [ "$(sinfo -h -o %T 2> /dev/null)" = idle ] && return
    sleep 0.2
  done
  echo "slurm-server: the node does not become idle; see $folder/log" >&2
  exit 1
}

stop() {
  local folder=$1 name file
  if running "$folder/run/slurmctld.own"; then
    export SLURM_CONF=$folder/slurm.conf
    timeout 20 scancel -Q -u "$(id -un)" || true
    for _ in $(seq 100); do
      [ -z "$(timeout 5 squeue -h 2> /dev/null)" ] && break
      sleep 0.2
    done
  fi
  for name in slurmd slurmctld munged; do
    file=$folder/run/$name.own
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
  'start 2') mkdir -p "$2" && start "$(cd "$2" && pwd)" ;;
  'stop 2') stop "$2" ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
