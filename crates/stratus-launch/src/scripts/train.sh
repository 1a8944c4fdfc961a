# Shared by all scripts that train repetitions. `program`, `launch`, `workers`, `stop_at` and `notify` are
# set; `stopped` is set by the signal handler. `start` is the command that starts the program, as `srun` does;
# empty if the program is started directly. `hosts` are the machines on which the program starts workers;
# empty if that is only this one.
child=
stopped=
start=
hosts=
# Hidden from the training process.
webhook=$STRATUS_WEBHOOK
unset STRATUS_WEBHOOK
# notice EVENT N CODE: runs the notify command and the webhook, each for at most twenty seconds.
notice() {
  if [ -n "$notify" ]; then
    STRATUS_EVENT=$1 STRATUS_LAUNCH=$launch STRATUS_REPETITION=$2 STRATUS_EXIT=$3 \
      timeout -k 1 20 sh -c "$notify" < /dev/null > /dev/null 2>&1 9>&- \
      || echo "$1 of repetition $2: the notify command exited with $?"
  fi
  if [ -n "$webhook" ]; then
    text="$launch, repetition $2: $1 on $(uname -n | tr -cd 'A-Za-z0-9.-')"
    json="{\"event\": \"$1\", \"launch\": \"$launch\", \"repetition\": $2, \"exit\": ${3:-null}"
    # The address is not an argument: other users can read arguments.
    printf 'url = "%s"\n' "$webhook" | timeout -k 1 20 curl -s -f -o /dev/null -m 15 -K - \
      -H 'content-type: application/json' --data "$json, \"text\": \"$text\"}" 9>&- \
      || echo "the webhook failed: curl exited with $?"
  fi
}
# lease_expired: succeeds if the lease of the machine has ended.
lease_expired() {
  [ -n "$stop_at" ] && [ "$(date +%s)" -ge "$stop_at" ]
}
# is_full: succeeds if the disk is full: less than 16 MiB are free, or the log of $n reports it.
is_full() {
  room=$(df -Pk "$n" | tail -n 1 | { read -r _ _ _ room _; echo "$room"; })
  [ "${room:-1000000}" -lt 16384 ] || tail -n 5 "$n/log.txt" 2> /dev/null | grep -q 'No space left on device'
}
# is_done N: succeeds if the repetition was trained to its goal. Without a search, there is no goal.
is_done() {
  [ "$(cat "$1/exit" 2> /dev/null)" = 0 ] \
    && [ "$(cat "$1/goal" 2> /dev/null)" = "$(cat "$1/reached" 2> /dev/null)" ]
}
# take_ownership FOLDER TOKEN: takes the lock of the folder. Training processes inherit it, so that no other
# script starts while one is alive.
take_ownership() {
  owned=$1
  exec 9>> "$owned/owner.lock"
  # A status query holds the lock for an instant.
  flock -w 5 9 || exit 5
  echo "$2 $(uname -n) $$ $(date +%s)" > "$owned/.owner" && mv -f "$owned/.owner" "$owned/owner"
  heartbeat_loop "$owned" $$ 9>&- < /dev/null > /dev/null 2>&1 &
  heartbeat_pid=$!
}
heartbeat_loop() {
  while kill -0 "$2" 2> /dev/null; do
    date +%s > "$1/.heartbeat" && mv -f "$1/.heartbeat" "$1/heartbeat"
    sleep 2
  done
}
# iterations N: prints the number of recorded iterations of a repetition, with the header.
iterations() {
  { wc -l < "$1/run/iterations.csv"; } 2> /dev/null || echo 0
}
# is_idle NOW BEFORE FILE: succeeds if three attempts in a row made no progress. NOW is the progress at the
# end of this attempt, BEFORE that at its start. FILE has the number of such attempts, and the progress at the
# end of the last one that was counted: an attempt that ended otherwise may have made progress since. After
# three, counting starts again.
is_idle() {
  idle=
  last=
  read -r idle last 2> /dev/null < "$3"
  case $idle in '' | *[!0-9]*) idle=0 ;; esac
  case $last in '' | *[!0-9]*) last=$1 ;; esac
  if [ "$1" -gt "$2" ]; then
    idle=0
  elif [ "$1" -gt "$last" ]; then
    idle=1
  else
    idle=$((idle + 1))
  fi
  echo "$((idle % 3)) $1" > "$3"
  [ "$idle" -ge 3 ]
}
# devices_failed: succeeds if all workers that `srun` started have recorded that their device has failed.
devices_failed() {
  [ "$(find "$n/exits" -name '.device-failed-*' | wc -l)" -eq $((nodes * workers_per_node)) ]
}
# stop_training: asks the training process for a checkpoint and its end.
stop_training() {
  kill -TERM "$child" 2> /dev/null
}
# train N: starts or resumes a repetition and sets `code` to its exit code.
train() {
  n=$1
  rm -f "$n/exit"
  if [ -f "$n/run/experiment.toml" ]; then
    set -- "$n/run"
  else
    set -- "$n/experiment.toml" --out "$n/run"
  fi
  if [ -n "$stop_at" ]; then
    set -- "$@" --deadline "$(date -u -d "@$stop_at" +%FT%TZ)"
  fi
  if [ -n "$workers" ]; then
    set -- "$@" --workers "$workers"
  fi
  if [ -n "$hosts" ]; then
    set -- "$@" --hosts "$hosts"
  fi
  goal=$(cat "$n/goal" 2> /dev/null)
  case $goal in
    '' | *[!0-9]*) ;;
    *) set -- "$@" --until-epoch "$goal" ;;
  esac
  # The notice runs in the background, so that training does not wait for it.
  notice start "$n" 9>&- &
  notify_pid=$!
  echo "$n" > "$owned/current"
  date +%s > "$n/began"
  rm -rf "$n/exits"
  exits=
  if [ -n "$start" ]; then
    exits=$PWD/$n/exits
    mkdir -p "$exits"
  fi
  # shellcheck disable=SC2086 # `start` has several words
  STRATUS_LAUNCH=$launch STRATUS_WORKER_EXITS=$exits $start "$program" train "$@" \
    < /dev/null >> "$n/log.txt" 2>&1 &
  child=$!
  echo "$child" > "$owned/pid"
  # The signal may have arrived before the process started.
  [ -n "$stopped" ] && stop_training
  wait "$child"
  code=$?
  # A signal interrupts `wait`, not the training process.
  while kill -0 "$child" 2> /dev/null; do
    wait "$child"
    code=$?
  done
  child=
  rm -f "$owned/pid"
  now=$(date +%s)
  spent=$(cat "$n/spent" 2> /dev/null || echo 0)
  echo $((spent + now - $(cat "$n/began"))) > "$n/.spent" && mv -f "$n/.spent" "$n/spent"
  # Workers that were killed, or lost their node, are not a failure of training. A run that was asked to stop,
  # or reached its own limit, has a new summary that says so.
  lost=
  case "${start:+srun}:$code" in
    srun:137 | srun:143)
      # `srun` reports the highest exit code: a worker that failed by itself has recorded a lower one.
      code=$(cat "$n"/exits/* 2> /dev/null | grep -v -x -e 0 -e 75 | head -n 1)
      [ -n "$code" ] || lost=1
      ;;
    *:75)
      summary=$(find "$n/run/summary.json" -newer "$n/began" 2> /dev/null)
      if [ -n "$start$workers" ] && ! grep -q '"status": "interrupted"' "${summary:-/dev/null}"; then
        lost=1
      fi
      ;;
  esac
  # Each would fail again.
  [ -n "$lost" ] && [ -n "$start" ] && devices_failed && lost= && code=1
  [ -n "$lost" ] && code=75
  rm -f "$n/began"
  # A process that was just starting had no checkpoint to write and has lost nothing.
  [ -n "$stopped" ] && [ "$code" = 143 ] && code=75
  # A full disk is not a failure of training: it can be resumed when space is free.
  if [ "$code" != 0 ] && [ "$code" != 75 ] && is_full; then
    echo 'the disk is full: free space, then run stratus launch resume' >> "$n/log.txt"
    code=75
  fi
  # The end of the lease is not a failure.
  [ "$code" != 0 ] && lease_expired && code=75
  [ "$code" = 0 ] && [ -n "$goal" ] && echo "$goal" > "$n/.reached" && mv -f "$n/.reached" "$n/reached"
  echo "$code" > "$n/.exit" && mv -f "$n/.exit" "$n/exit"
  wait "$notify_pid"
  case $code in
    0) notice end "$n" "$code" ;;
    75) ;;
    *) notice failure "$n" "$code" ;;
  esac
}
