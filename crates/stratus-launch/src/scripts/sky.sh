# Each job of SkyPilot trains one repetition on the machine's own disk. The run is saved to the mounted bucket
# in two alternating slots, each with a list of hashes that is written last: an incomplete copy is never taken
# for complete, in whatever order the mount writes.
umask 077
jobs=$root/jobs/$launch
saved=$jobs/$n
work=$folder/jobs/$launch
say() {
  echo "stratus: $1"
}
mkdir -p "$saved" "$work/$n" "$folder/program" && cd "$work" || exit 1
# is_stopped: succeeds if the launch was stopped after this job was submitted.
is_stopped() {
  asked=$(cat "$jobs/stop" 2> /dev/null)
  case $asked in
    '' | *[!0-9]*) return 1 ;;
  esac
  [ "$asked" -ge "$submitted" ]
}
# write_state: writes the state of the repetition to the bucket.
write_state() {
  { repetition "$n" "$n"; owner "$n"; } > ".state.$n" && cp ".state.$n" "$saved/.state.tmp" \
    && mv -f "$saved/.state.tmp" "$saved/state"
}
# copy_changed FOLDER PATTERN…: copies the changed files of the run that `find` finds.
copy_changed() {
  to=$1
  shift
  (cd "$n/run" && find "$@") 2> /dev/null | while IFS= read -r file; do
    cmp -s "$n/run/$file" "$to/$file" && continue
    mkdir -p "$to/${file%/*}"
    # Files that are removed meanwhile are handled below.
    cp "$n/run/$file" "$to/$file" 2> /dev/null
  done
}
# save_run: saves the run to the bucket.
save_run() {
  [ -f "$n/run/experiment.toml" ] || return 0
  count=$(($(cat "$n/kept" 2> /dev/null || echo 0) + 1))
  slot=$saved/run.$((count % 2))
  rm -f "$slot.list"
  mkdir -p "$slot" || return 1
  tries=0
  while :; do
    before=$(ls "$n/run/checkpoints" 2> /dev/null)
    # Checkpoints first: rows newer than the checkpoint are truncated on resume.
    copy_changed "$slot" ./checkpoints -name '.*.tmp' -prune -o -type f -print
    copy_changed "$slot" . -name '.*.tmp' -prune -o -path ./checkpoints -prune -o -name run.lock \
      -o -type f -print
    (cd "$slot" && find . -type f) | while IFS= read -r file; do
      [ -f "$n/run/$file" ] || rm -f "$slot/$file"
    done
    [ "$before" = "$(ls "$n/run/checkpoints" 2> /dev/null)" ] && break
    tries=$((tries + 1))
    [ "$tries" -lt 5 ] || return 1
  done
  echo "$count" > ".list.$n" && (cd "$slot" && find . -type f -exec sha256sum {} +) >> ".list.$n" || return 1
  cp ".list.$n" "$slot.list.tmp" && mv -f "$slot.list.tmp" "$slot.list" && echo "$count" > "$n/kept"
}
# restore: copies the newest complete saved run, unless the local run is newer.
restore() {
  for slot in 0 1; do
    list=$saved/run.$slot.list
    [ -f "$list" ] && echo "$(head -n 1 "$list") $slot"
  done | sort -rn > ".kept.$n"
  while read -r count slot; do
    case $count$slot in
      '' | *[!0-9]*) continue ;;
    esac
    [ -f "$n/run/experiment.toml" ] && [ "$(cat "$n/kept" 2> /dev/null || echo 0)" -ge "$count" ] && return
    tail -n +2 "$saved/run.$slot.list" > ".list.$n"
    (cd "$saved/run.$slot" && sha256sum -c --status "$work/.list.$n") || continue
    rm -rf "$n/run" "$n/.run"
    cp -r "$saved/run.$slot" "$n/.run" && mv "$n/.run" "$n/run" && echo "$count" > "$n/kept"
    say "resuming from the saved run"
    return
  done < ".kept.$n"
}
# saver_loop: saves the run after each new checkpoint and checks for a stop request.
saver_loop() {
  last=$(ls "$n/run/checkpoints" 2> /dev/null)
  while kill -0 "$1" 2> /dev/null; do
    if is_stopped && [ ! -e stop ]; then
      : > stop
      kill -TERM "$1"
    fi
    now=$(ls "$n/run/checkpoints" 2> /dev/null)
    if [ "$now" != "$last" ]; then
      save_run && last=$now
    fi
    write_state
    sleep "$pause"
  done
}
not_restarted='three attempts ended by losses without progress: not restarted; run stratus launch resume'
# code_of_loss: sets `code` after the loss of a machine or a worker: to 75, by which SkyPilot restarts the
# job, or to 0 after three losses in a row without progress.
code_of_loss() {
  code=75
  if is_idle "$(iterations "$n")" "$rows_before" "$saved/idle"; then
    say "$not_restarted"
    code=0
  fi
}
rm -f stop
if [ "$node" = 0 ]; then
  prepare_head
else
  read_head
  old_seen="$seen $seen_code"
fi
is_stopped && exit 0
lease_expired && exit 0
# A machine that was given up may still train: its heartbeat is seen with the delay of the mount.
if [ "$node" = 0 ] && [ -f "$saved/beat" ] && read -r host _ < "$saved/beat" \
  && [ "$host" != "$(uname -n)" ]; then
  before=$(cat "$saved/beat")
  sleep "$((6 * pause))"
  if [ "$before" != "$(cat "$saved/beat" 2> /dev/null)" ]; then
    say "repetition $n is already running on $host"
    exit 20
  fi
fi
if [ "$node" = 0 ]; then
  begin_beat
  trap 'stopped=1; [ -n "$child" ] && kill -TERM "$child"' TERM
fi
# Files on a mounted bucket cannot be executed.
own_program=$folder/program/$launch
mkdir -p "$own_program" && cp "$program" "$own_program/.stratus.$n" && chmod 500 "$own_program/.stratus.$n" \
  && mv -f "$own_program/.stratus.$n" "$own_program/stratus" || exit 1
program=$own_program/stratus
if ! "$program" --version; then
  say 'the program does not run on this machine: another architecture or an older glibc'
  exit 1
fi
cp "$saved/experiment.toml" "$n/experiment.toml" || exit 1
if [ $((nodes * workers_per_node)) -gt 1 ]; then
  workers=$((nodes * workers_per_node))
  prepare_mpi || exit 1
fi
[ "$node" = 0 ] || follow_head
restore
[ -f "$n/spent" ] || cp "$saved/spent" "$n/spent" 2> /dev/null
take_ownership "$n" "$launch-$n"
saver_loop $$ 9>&- < /dev/null > /dev/null 2>&1 &
saver_pid=$!
rows_before=$(iterations "$n")
if [ "$nodes" -gt 1 ]; then
  prepare_ssh || exit 1
  if ! wait_for_nodes; then
    kill "$heartbeat_pid" "$saver_pid" 2> /dev/null
    wait "$saver_pid" 2> /dev/null
    echo 75 > "$n/exit"
    write_state
    if is_stopped || lease_expired; then
      exit 0
    fi
    code=75
    [ -n "$stopped" ] || code_of_loss
    exit "$code"
  fi
fi
say "training repetition $n"
# Shows the log as it is written.
: >> "$n/log.txt"
tail -n 0 -F "$n/log.txt" 2> /dev/null 9>&- &
tail_pid=$!
train "$n"
kill "$heartbeat_pid" "$saver_pid" 2> /dev/null
wait "$saver_pid" 2> /dev/null
save_run || say 'the last state of the run could not be saved'
cp "$n/spent" "$saved/spent"
write_state
sleep 1
kill "$tail_pid" 2> /dev/null
say "exited with $code${lost:+ after the loss of a worker}"
# Exit code 75 makes SkyPilot restart the job; only preempted machines and lost workers use it.
if [ "$code" = 75 ]; then
  if [ -e stop ] || [ -z "$stopped$lost" ] || lease_expired; then
    code=0
  elif [ -n "$lost" ]; then
    code_of_loss
  fi
fi
exit "$code"
