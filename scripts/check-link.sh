#!/usr/bin/env bash
# Two workers of resnet18 over a link of 1 Gbit/s with 0.2 ms latency: measures which fraction of the exchange
# overlaps the backward pass.
#
# Each worker has a separate network namespace; a pair of virtual devices joins them, shaped by the kernel
# with netem or, without netem, only to the rate. The fraction is 1 - (communication - waiting) / exchange:
# from the time table of the run (`stratus collect`), minus the time that a worker waits for the other,
# relative to the time of the same bytes at the rate of the link. `stratus bench exchange` is for comparison.
# The counters of the link show how many bytes it carried. Too few mean that the workers used another path,
# which is an error.
#
#   scripts/check-link.sh                needs root, ip and tc; reports missing ones
#   scripts/check-link.sh --best-effort  the same, but succeeds without them
#
# STRATUS names the program (target/release/stratus), GBIT (a second) and DELAY the link, SETTINGS more keys,
# MIB the exchanged data per iteration: the gradients and statistics of resnet18.
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

consequence=("workers were NOT run over a shaped link")
stratus=${STRATUS-$root/${CARGO_TARGET_DIR-target}/release/stratus}
gbit=${GBIT-1}
delay=${DELAY-200us}
mib=${MIB-45}
mpi=$root/.deps/mpich

[ "$(uname -s)" = Linux ] || give_up "network namespaces need Linux"
[ "$(id -u)" = 0 ] || give_up "network namespaces need root"
command -v ip >/dev/null && command -v tc >/dev/null || give_up "ip or tc is missing (install iproute2)"
[ -x "$stratus" ] || give_up "$stratus is not built (make build)"
[ -x "$mpi/bin/mpiexec" ] || give_up "MPICH is missing in .deps (make deps)"

one=stratus-$$-a
two=stratus-$$-b
folder=$(mktemp -d)
cleanup() {
    ip netns delete "$one" 2>/dev/null || true
    ip netns delete "$two" 2>/dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT

# An address reserved for documentation (RFC 5737).
address=192.0.2
device=shaped
ip netns add "$one" 2>/dev/null && ip netns add "$two" || give_up "cannot create a network namespace"
ip link add $device netns "$one" type veth peer name $device netns "$two" \
    || give_up "cannot create a pair of virtual devices"
number=0
for namespace in "$one" "$two"; do
    number=$((number + 1))
    ip -n "$namespace" address add "$address.$number/24" dev "$device"
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set "$device" up
    if tc -n "$namespace" qdisc add dev "$device" root netem rate "${gbit}gbit" delay "$delay" limit 10000 \
        2>/dev/null; then
        link="$gbit Gbit/s with $delay either way"
    elif tc -n "$namespace" qdisc add dev "$device" root tbf rate "${gbit}gbit" burst 128kb latency 100ms \
        2>/dev/null; then
        link="$gbit Gbit/s, without the delay: this kernel has no netem"
    else
        give_up "the kernel cannot shape links (modules sch_netem and sch_tbf are missing)"
    fi
done

# The devices need a moment to come up, and UCX ignores devices that are down.
for namespace in "$one" "$two"; do
    for _ in $(seq 100); do
        state=$(ip netns exec "$namespace" cat "/sys/class/net/$device/operstate")
        [ "$state" != up ] || break
        sleep 0.1
    done
    [ "$state" = up ] || give_up "the virtual devices did not come up"
done

# The command with which mpiexec starts a worker on another host: it starts it in the other namespace.
cat > "$folder/launcher" <<LAUNCHER
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
shift
exec ip netns exec $two sh -c "\$*"
LAUNCHER
chmod +x "$folder/launcher"

run() { # argument of stratus…
    # Both workers are on one machine, which UCX detects; this forces it to use the link.
    ip netns exec "$one" env STRATUS_MPI="$mpi/lib" STRATUS_CACHE="$folder/cache" \
        UCX_TLS=tcp,self UCX_NET_DEVICES=$device MPIR_CVAR_NOLOCAL=1 \
        "$mpi/bin/mpiexec" -n 2 -ppn 1 -hosts "$address.1,$address.2" -iface "$device" \
        -launcher ssh -launcher-exec "$folder/launcher" "$stratus" "$@"
}
sent() { ip netns exec "$one" cat /sys/class/net/$device/statistics/tx_bytes; }

say "an exchange of $mib MiB without computation, over $link"
run bench exchange --workers 2 --mib "$mib" --json > "$folder/exchange.json"
before=$(sent)
say "resnet18, two workers of one thread"
# shellcheck disable=SC2086 # several arguments
run train resnet18 --out "$folder/run" --set data.name=synthetic --set data.synthetic.images=640 \
    --set data.synthetic.validation_images=64 --set train.batch_size=64 --set train.epochs=1 \
    --set train.parts=2 --set train.threads=1 ${SETTINGS-} >&2
bytes=$(($(sent) - before))
"$stratus" collect "$folder/run" --json > "$folder/collected.json"

python3 - "$folder/exchange.json" "$folder/collected.json" "$mib" "$bytes" "$gbit" <<'PYTHON'
import json, sys

exchange, collected = (json.load(open(path)) for path in sys.argv[1:3])
mib, sent, gbit = (float(text) for text in sys.argv[3:])
accounting = collected[0]["accounting"]
alone = 8e-6 * mib * 2**20 / gbit
print(f"exchange         {alone:.1f} ms at the rate of the link;",
      f"measured without computation {exchange['tree_ms']:.1f} ms")
for worker in accounting["workers"]:
    communication, wall = (worker[what]["mean_ms"] for what in ("communication", "wall"))
    waits = worker.get("waited_for", {}).get("mean_ms", 0)
    hidden = 100 * (1 - (communication - waits) / alone)
    print(f"worker {worker['worker']}         {wall:.1f} ms per iteration, {communication:.1f} ms of it",
          f"communication, {waits:.1f} ms of that waiting: {hidden:.0f} % of the exchange is hidden")
iterations = accounting["iterations"] + accounting["skipped"]
print(f"over the link    {sent / 1e6:.0f} MB in {iterations} iterations")
if sent < 0.8 * iterations * mib * 2**20:
    sys.exit("check-link: fewer bytes went over the link than were exchanged")
PYTHON
