#!/usr/bin/env bash
# Launches over a slow link: uploads 500 MB of data to a real sshd in a network namespace, over a link of 100
# Mbit/s. The connection is cut during the upload, and the next launch resumes it. Then measures the cost of
# watching a hundred runs. Needs root, iproute2 and OpenSSH.
#
#   scripts/check-launch-link.sh [MEGABYTES]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
megabytes=${1-500}
rate=100 # Mbit/s
space=stratus-$$
work=$(mktemp -d)

say() { echo "check-launch-link: $1" >&2; }

for program in ip tc /usr/sbin/sshd ssh-keygen; do
    command -v "$program" > /dev/null && continue
    say "$program is missing: install iproute2 and openssh-server"
    exit 1
done
[ "$(id -u)" = 0 ] || { say "creating network namespaces needs root"; exit 1; }

finish() {
    if ip netns list | grep -q "^$space"; then
        ip netns pids "$space" | xargs -r kill -9 2> /dev/null || true
        ip netns del "$space"
    fi
    rm -rf "$work"
}
trap finish EXIT

cd "$root"
target=${CARGO_TARGET_DIR-target}
# The whole workspace, as `make test` builds it.
"${CARGO-cargo}" test --quiet --locked --workspace --no-run
stratus=$(cd "$target" && pwd)/debug/stratus

# The link.
ip netns add "$space"
ip link add near$$ type veth peer name far$$
ip link set far$$ netns "$space"
ip addr add 10.213.77.1/30 dev near$$
ip link set near$$ up
ip -n "$space" addr add 10.213.77.2/30 dev far$$
ip -n "$space" link set far$$ up
ip -n "$space" link set lo up
shape=(root tbf rate ${rate}mbit burst 64kb latency 50ms)
tc qdisc add dev near$$ "${shape[@]}"
ip netns exec "$space" tc qdisc add dev far$$ "${shape[@]}"

# The host.
for key in host user; do ssh-keygen -q -t ed25519 -N '' -f "$work/$key"; done
cat > "$work/sshd_config" <<CONF
Port 22
ListenAddress 10.213.77.2
HostKey $work/host
AuthorizedKeysFile $work/user.pub
StrictModes no
UsePAM no
PidFile none
CONF
echo "10.213.77.2 $(cat "$work/host.pub")" > "$work/known"
cat > "$work/config" <<CONF
Host far
HostName 10.213.77.2
User root
IdentityFile $work/user
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile $work/known
CONF
mkdir -p /run/sshd
ip netns exec "$space" /usr/sbin/sshd -D -e -f "$work/sshd_config" 2> "$work/log" &
server=$!
for _ in $(seq 100); do
    ssh -F "$work/config" -o BatchMode=yes far true 2> /dev/null && break
    sleep 0.1
done

# The project, with the digits and a large file as data.
mkdir -p "$work/project/data"
cp data/mnist/* "$work/project/data/"
head -c "${megabytes}000000" /dev/urandom > "$work/project/data/large"
cat > "$work/project/targets.toml" <<CONF
[far]
kind = "ssh"
host = "far"
config = "$work/config"
folder = "$work/there"
[far.environment]
OMP_NUM_THREADS = "1"
CONF
cd "$work/project"
export STRATUS_CACHE=$work/cache
launch() {
    "$stratus" launch far digits --json --set data.path=data --set train.epochs=1 \
        --set train.batch_size=1024 "$@"
}

# Cuts the connection after a part of the large file has arrived.
launch > "$work/first" 2> "$work/messages" &
first=$!
part=0
for _ in $(seq 600); do
    part=$(find "$work/there/content" -name '*.part' -size +2000k -printf '%s\n' 2> /dev/null \
        | sort -n | tail -n 1) || true # nothing has arrived yet
    [ "${part:-0}" -ge $((megabytes * 1000000 / 4)) ] && break
    sleep 0.1
done
ip netns pids "$space" | grep -v -x "$server" | xargs -r kill -9 2> /dev/null || true # some end by themselves
if wait "$first"; then
    say "the first launch was not interrupted"
    exit 1
fi
say "interrupted after $part bytes of the large file: $(tail -n 2 "$work/messages" | tr '\n' ' ')"
begun=$(date +%s.%N)
launch > "$work/second"
ended=$(date +%s.%N)
total=$(find "$work/there/content" -type f -printf '%s\n' | awk '{sum += $1} END {printf "%d", sum}')
python3 - "$work/second" "$begun" "$ended" "$part" "$total" "$rate" <<'PYTHON'
import json, sys
file, begun, ended, part, total, rate = sys.argv[1], *map(float, sys.argv[2:])
sent = json.load(open(file))["sent_bytes"]
share = sent * 8 / (ended - begun) / (rate * 1e6)
print(f"{sent / 1e6:.0f} MB in {ended - begun:.1f} s: {100 * share:.1f} % of {rate:.0f} Mbit/s, from the "
      f"start of the command to its end; {part / 1e6:.0f} MB of the file had arrived before and were not "
      "sent again")
assert sent <= total - part + 1e6, f"started over: {sent} of {total} bytes sent, {part} were there before"
PYTHON

# The cost of watching a launch of a hundred runs: one is training, the others wait.
"$stratus" launch far digits --json --set data.path=data --set train.epochs=3000 --repetitions 100 \
    > "$work/third"
python3 - "$stratus" "$work/config" <<'PYTHON'
import os, subprocess, sys, time
began = time.monotonic()
process = subprocess.Popen([sys.argv[1], "launch", "fetch", "-f"], stderr=subprocess.DEVNULL)
time.sleep(120)
spent = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
seconds = sum(map(int, spent[11:15])) / os.sysconf("SC_CLK_TCK")
share = seconds / (time.monotonic() - began)
# The shared connection, which is a separate process.
masters = [line.split(None, 1) for line in subprocess.run(
    ["ps", "-eo", "cputimes,args"], capture_output=True, text=True).stdout.splitlines() if "[mux]" in line]
process.terminate()
print(f"watching 100 runs: {100 * share:.2f} % of a core, {len(masters)} connection")
PYTHON
"$stratus" launch stop > /dev/null 2>&1 || true
