# The machines of a job of SkyPilot, if there are several: the first one trains, with workers on all of them
# that it starts by SSH, and the others prepare and wait until it has ended. They speak through small files in
# the bucket, which each reads with the delay of its mount:
#   head     written by the first machine: a token that is new in each attempt, and later its exit code
#   ready.N  written by machine N: the token of the attempt that it is ready for
#   beat     changes while the first machine trains
node=${SKYPILOT_NODE_RANK:-0}
# The number of polls without a sign of another machine after which it is lost.
max_polls=60
# prepare_mpi: copies an uploaded MPI to this machine, since files on a mounted bucket cannot be executed.
prepare_mpi() {
  case $STRATUS_MPI in
    "$root"/*) ;;
    *) return 0 ;;
  esac
  installed=${STRATUS_MPI%/*/*}
  own_mpi=$own_program/mpi
  part=$own_program/.mpi
  rm -rf "$own_mpi" "$part" && cp -r "$installed" "$part" && chmod 700 "$part/bin" "$part/bin"/* \
    && mv "$part" "$own_mpi" || return 1
  export STRATUS_MPI="$own_mpi${STRATUS_MPI#"$installed"}"
}
# prepare_ssh: makes a program that connects to the machines of this job. They are new, so that nothing knows
# their keys, and their addresses may have belonged to the machines of an earlier attempt.
prepare_ssh() {
  [ -n "$STRATUS_SSH" ] && return 0
  known=$work/known_hosts
  rm -f "$known" "$own_program/ssh"
  printf '#!/bin/sh\nexec ssh -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=%s "$@"\n' \
    "'\"$(printf %s "$known" | sed "s/'/'\\\\''/g")\"'" > "$own_program/ssh" || return 1
  chmod 500 "$own_program/ssh"
  export STRATUS_SSH="$own_program/ssh"
}
# write_saved FILE TEXT: replaces a small file in the bucket.
write_saved() {
  echo "$2" > "$saved/.$1.tmp" && mv -f "$saved/.$1.tmp" "$saved/$1"
}
# wait_for_nodes: begins an attempt on the first machine, waits until the others are ready, and sets `hosts`
# to the list of all. Fails if one does not become ready, or if the job is to stop.
wait_for_nodes() {
  token=$(od -An -N 16 -t x1 /dev/urandom | tr -d ' \n')
  write_saved head "$token" || return 1
  polls=0
  other=1
  while [ "$other" -lt "$nodes" ]; do
    if [ "$(cat "$saved/ready.$other" 2> /dev/null)" = "$token" ]; then
      other=$((other + 1))
      continue
    fi
    if is_stopped || [ -n "$stopped" ]; then
      return 1
    fi
    polls=$((polls + 1))
    if [ "$polls" -gt "$max_polls" ]; then
      say "machine $other of $nodes is not ready"
      return 1
    fi
    sleep "$pause"
  done
  for address in $SKYPILOT_NODE_IPS; do
    hosts="${hosts:+$hosts,}$address:$workers_per_node"
  done
}
# end_attempt CODE: tells the others the exit code of the first machine.
end_attempt() {
  [ -z "$token" ] || write_saved head "$token $1"
}
# follow_head: waits on another machine until the first one has ended, and exits with its exit code; with 75
# if it is lost.
follow_head() {
  trap 'exit 75' TERM
  # Of an earlier attempt.
  read -r old_token old_code 2> /dev/null < "$saved/head"
  token=
  beat=$(cat "$saved/beat" 2> /dev/null)
  polls=0
  while [ "$polls" -le "$max_polls" ]; do
    read -r seen code 2> /dev/null < "$saved/head"
    # The attempt of this machine has no exit code before this machine is ready.
    if [ -n "$code" ] && [ "$seen $code" != "$old_token $old_code" ]; then
      say "machine 0 exited with $code"
      exit "$code"
    fi
    if [ -n "$seen" ] && [ "$seen" != "$token" ] && [ -z "$code" ]; then
      token=$seen
      write_saved "ready.$node" "$token"
      polls=0
    fi
    is_stopped && [ -z "$token" ] && exit 0
    now=$(cat "$saved/beat" 2> /dev/null)
    polls=$((polls + 1))
    [ "$now" = "$beat" ] || polls=0
    beat=$now
    sleep "$pause" &
    wait "$!"
  done
  say 'machine 0 is lost'
  exit 75
}
