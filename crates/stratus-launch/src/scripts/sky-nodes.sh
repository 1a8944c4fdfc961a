# The machines of a job of SkyPilot, if there are several: the first one trains, with workers on all of them
# that it starts by SSH, and the others prepare and wait until it has ended. They communicate by small files
# in the bucket, which each reads with the delay of its mount:
#   head.A   written by the first of the machines A: a token that is new in each attempt, and later its exit
#            code
#   ready.N  written by machine N: the token of the attempt that it is ready for
#   beat     changes while the script of the first machine runs
node=${SKYPILOT_NODE_RANK:-0}
# The number of polls without a sign of another machine after which it is lost.
max_polls=60
# Another job may have been started for the same repetition by mistake. It has other machines.
head=head.$(echo "$SKYPILOT_NODE_IPS" | cksum | cut -d ' ' -f 1)
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
# read_head: sets `seen` and `seen_code` to the token and the exit code of the first machine, empty if it has
# none.
read_head() {
  seen=
  seen_code=
  read -r seen seen_code 2> /dev/null < "$saved/$head"
  case $seen_code in *[!0-9]*) seen_code= ;; esac
}
# beat_loop PID: shows that the script of the first machine runs, which has the process ID PID.
beat_loop() {
  while kill -0 "$1" 2> /dev/null; do
    echo "$(uname -n) $(date +%s)" > "$saved/beat"
    sleep "$pause"
  done
}
# begin_beat: starts the beat of the first machine. It lasts until the script ends: restoring and saving a run
# may take longer than the others wait.
begin_beat() {
  beat_loop $$ < /dev/null > /dev/null 2>&1 &
  beat_pid=$!
}
# prepare_head: makes the first machine tell the others its exit code, wherever the script ends.
prepare_head() {
  beat_pid=
  token=$(od -An -N 16 -t x1 /dev/urandom | tr -d ' \n')
  trap 'end_head $?' EXIT
}
# end_head CODE: ends the beat of the first machine and tells the others its exit code.
end_head() {
  [ "$nodes" -le 1 ] || write_saved "$head" "$token $1"
  [ -n "$beat_pid" ] || return
  kill "$beat_pid" 2> /dev/null
  wait "$beat_pid" 2> /dev/null
  rm -f "$saved/beat"
}
# wait_for_nodes: begins an attempt on the first machine, waits until the others are ready, and sets `hosts`
# to the list of all. Fails if one does not become ready, or if the job is to stop.
wait_for_nodes() {
  write_saved "$head" "$token" || return 1
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
      waited="$((max_polls * pause / 60)) minutes"
      say "machine $((other + 1)) of $nodes was not ready after $waited; see its log with \`sky jobs logs\`"
      return 1
    fi
    sleep "$pause"
  done
  for address in $SKYPILOT_NODE_IPS; do
    hosts="${hosts:+$hosts,}$address:$workers_per_node"
  done
}
# saved_count: prints how often the run was saved.
saved_count() {
  { echo 0; head -q -n 1 "$saved"/run.?.list 2> /dev/null; } | grep -x '[0-9]*' | sort -n | tail -n 1
}
# exit_with_head: exits with the exit code of the first machine.
exit_with_head() {
  say "the first machine exited with $seen_code"
  exit "$seen_code"
}
# is_head_done: succeeds if the first machine has ended in the attempt of this machine.
is_head_done() {
  read_head
  [ -n "$seen_code" ] && [ "$seen $seen_code" != "$old_seen" ] && [ "${token:-$seen}" = "$seen" ]
}
# follow_head: waits on another machine until the first one has ended, and exits with its exit code. If the
# first one is lost, exits with 75, which restarts the job, or with 0 after three losses without progress.
# `old_seen` is the state of the first machine in an earlier attempt, if there was one.
follow_head() {
  token=
  trap 'is_head_done && exit_with_head; exit 75' TERM
  saved_before=$(saved_count)
  beat=$(cat "$saved/beat" 2> /dev/null)
  polls=0
  while [ "$polls" -le "$max_polls" ]; do
    is_head_done && exit_with_head
    if [ -n "$seen" ] && [ "$seen" != "$token" ] && [ -z "$seen_code" ]; then
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
  # The first machine had ended before this one looked.
  [ "${seen_code:-75}" = 75 ] || exit_with_head
  say 'the first machine is lost'
  if is_idle "$(saved_count)" "$saved_before" "$saved/idle.$node"; then
    say "$not_restarted"
    exit 0
  fi
  exit 75
}
