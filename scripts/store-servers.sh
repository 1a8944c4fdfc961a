#!/usr/bin/env bash
# A real OpenStack Swift on this machine for the tests of stratus-store. Its middleware `s3api` makes it an S3
# server too.
#
#   store-servers.sh install        installs Swift, memcached and sshd from Debian's packages (as root)
#   store-servers.sh start FOLDER   starts a node on 127.0.0.1 with its data in FOLDER. FOLDER/port is the
#                                   port of its proxy. Running servers are kept; a killed proxy is
#                                   started again at its port
#   store-servers.sh stop FOLDER    ends it
#
# Account `test`, user `test:tester`, key `testing`, as in Swift's own examples.
set -euo pipefail

programs=(
  swift-proxy-server swift-account-server swift-container-server swift-object-server swift-ring-builder
  memcached
)
servers=(account container object proxy)
PATH=$PATH:/usr/sbin:/sbin

missing() {
  local program
  for program in "${programs[@]}" sshd sftp; do
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
    echo "store-servers: missing: $missing; install Debian's swift-proxy swift-account swift-container" \
      "swift-object memcached openssh-server openssh-client as root, or go without:" \
      "make test-all STORE_SERVERS=none" >&2
    exit 1
  fi
  # Services must not start on installation: Debian asks this program first.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    swift-proxy swift-account swift-container swift-object memcached openssh-server openssh-client > /dev/null
  # Nor on the next boot, unless they were installed before.
  if command -v systemctl > /dev/null; then
    case $missing in *sshd*) systemctl disable ssh > /dev/null 2>&1 || true ;; esac
    case $missing in *memcached*) systemctl disable memcached > /dev/null 2>&1 || true ;; esac
    case $missing in
      *swift-*)
        systemctl disable swift-proxy swift-account swift-container swift-object > /dev/null 2>&1 || true
        ;;
    esac
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
  local folder=$1 user server port account container object proxy memcached pipeline
  user=$(id -un)
  mkdir -p "$folder/devices/d1" "$folder/run" "$folder/log"
  # Short pages of listings, so that tests meet several.
  cat > "$folder/swift.conf" <<CONF
[swift-hash]
swift_hash_path_suffix = stratus
swift_hash_path_prefix = stratus
[swift-constraints]
container_listing_limit = 100
CONF
  # shellcheck disable=SC2034 # by indirection, as ${!server}
  read -r account container object proxy memcached <<< "$(free_ports 5)"
  for server in account container object; do
    port=${!server}
    # One zone, one replica: 2^4 partitions.
    (cd "$folder" && swift-ring-builder "$server.builder" create 4 1 0 \
      && swift-ring-builder "$server.builder" add "r1z1-127.0.0.1:$port/d1" 1 \
      && swift-ring-builder "$server.builder" rebalance) > "$folder/log/$server.ring"
    cat > "$folder/$server.conf" <<CONF
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $port
workers = 0
user = $user
swift_dir = $folder
devices = $folder/devices
mount_check = false
fallocate_reserve = 0
log_address = /dev/null
recon_cache_path = $folder/run

[pipeline:main]
pipeline = $server-server

[app:$server-server]
use = egg:swift#$server
CONF
  done
  pipeline="catch_errors gatekeeper healthcheck cache listing_formats bulk s3api tempauth"
  pipeline+=" copy slo dlo proxy-server"
  cat > "$folder/proxy.conf" <<CONF
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $proxy
workers = 0
user = $user
swift_dir = $folder
log_address = /dev/null

[pipeline:main]
pipeline = $pipeline

[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true

[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:$memcached
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:bulk]
use = egg:swift#bulk
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
max_bucket_listing = 100
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
CONF
  echo "$memcached" > "$folder/memcached.port"
  echo "$proxy" > "$folder/port"
}

running() {
  [ -f "$1" ] && kill -0 "$(cat "$1")" 2> /dev/null
}

# Servers must not inherit the caller's streams: a reader would wait for their end.
launch() {
  local folder=$1 name=$2
  shift 2
  running "$folder/run/$name.pid" && return
  setsid "$@" > "$folder/log/$name" 2>&1 < /dev/null &
  echo $! > "$folder/run/$name.pid"
}

# Succeeds if all servers answer: the proxy answers with 503 while the others start.
answers() {
  local folder=$1 ports
  ports=$(sed -n 's/^bind_port = //p' "$folder"/*.conf)
  # shellcheck disable=SC2086 # a word per port
  python3 - "$(cat "$folder/port")" "$(cat "$folder/memcached.port")" $ports 2> /dev/null <<'PYTHON'
import socket, sys, urllib.request
for port in sys.argv[1:]:
    socket.create_connection(("127.0.0.1", int(port)), timeout=2).close()
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/healthcheck", timeout=2)
PYTHON
}

start() {
  local folder=$1 server user=()
  [ -f "$folder/port" ] || configure "$folder"
  [ "$(id -u)" = 0 ] && user=(-u root)
  launch "$folder" memcached memcached -l 127.0.0.1 -p "$(cat "$folder/memcached.port")" -m 16 "${user[@]}"
  for server in "${servers[@]}"; do
    launch "$folder" "$server" "$(command -v "swift-$server-server")" "$folder/$server.conf"
  done
  for _ in $(seq 300); do
    answers "$folder" && return
    sleep 0.2
  done
  echo "store-servers: Swift does not answer; see $folder/log" >&2
  exit 1
}

stop() {
  local file
  for file in "$1"/run/*.pid; do
    if running "$file"; then
      kill "$(cat "$file")" 2> /dev/null || true
    fi
    rm -f "$file"
  done
}

case "${1-} $#" in
  'install 1') install ;;
  'start 2') mkdir -p "$2" && start "$(cd "$2" && pwd)" ;;
  'stop 2') stop "$2" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
