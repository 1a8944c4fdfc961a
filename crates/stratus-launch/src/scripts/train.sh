# What every script that trains repetitions has. `program`, `launch`, `workers`, `stop_at` and `notify` are
# set; `stopped` says that a signal came.
child=
stopped=
# The training need not know it.
webhook=$STRATUS_WEBHOOK
unset STRATUS_WEBHOOK
# notice EVENT N CODE: tells the command and the webhook, each for twenty seconds at most.
notice() {
  if [ -n "$notify" ]; then
    STRATUS_EVENT=$1 STRATUS_LAUNCH=$launch STRATUS_REPETITION=$2 STRATUS_EXIT=$3 \
      timeout -k 1 20 sh -c "$notify" < /dev/null > /dev/null 2>&1 9>&- \
      || echo "$1 of repetition $2: the command that is told ended with $?"
  fi
  if [ -n "$webhook" ]; then
    text="$launch, repetition $2: $1 on $(uname -n | tr -cd 'A-Za-z0-9.-')"
    json="{\"event\": \"$1\", \"launch\": \"$launch\", \"repetition\": $2, \"exit\": ${3:-null}"
    # The address goes through no argument, which others could read.
    printf 'url = "%s"\n' "$webhook" | timeout -k 1 20 curl -s -f -o /dev/null -m 15 -K - \
      -H 'content-type: application/json' --data "$json, \"text\": \"$text\"}" 9>&- \
      || echo "the webhook was not told: curl ended with $?"
  fi
}
# Whether the time is over in which the machine may be used.
over() {
  [ -n "$stop_at" ] && [ "$(date +%s)" -ge "$stop_at" ]
}
# Whether nothing more can be written: less than 16 MiB are left, or the training of $n says so.
is_full() {
  room=$(df -Pk "$n" | tail -n 1 | { read -r _ _ _ room _; echo "$room"; })
  [ "${room:-1000000}" -lt 16384 ] || tail -n 5 "$n/log.txt" 2> /dev/null | grep -q 'No space left on device'
}
# own FOLDER TOKEN: takes its lock, which is the trainings' too: as long as one lives, no other starts.
own() {
  owned=$1
  exec 9>> "$owned/owner.lock"
  # Who only asks whether it is held has it for an instant.
  flock -w 5 9 || exit 5
  echo "$2 $(uname -n) $$ $(date +%s)" > "$owned/.owner" && mv -f "$owned/.owner" "$owned/owner"
  beat "$owned" $$ 9>&- < /dev/null > /dev/null 2>&1 &
  heart=$!
}
beat() {
  while kill -0 "$2" 2> /dev/null; do
    date +%s > "$1/.heartbeat" && mv -f "$1/.heartbeat" "$1/heartbeat"
    sleep 2
  done
}
# train N: trains a repetition, from where it was. `code` is then its exit code.
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
  # Told beside the training, which does not wait.
  notice start "$n" 9>&- &
  telling=$!
  date +%s > "$n/began"
  "$program" train "$@" < /dev/null >> "$n/log.txt" 2>&1 &
  child=$!
  echo "$child" > "$owned/pid"
  # The signal may have come before there was anybody to hand it to.
  [ -n "$stopped" ] && kill -TERM "$child" 2> /dev/null
  wait "$child"
  code=$?
  # A signal ends the wait, not the training.
  while kill -0 "$child" 2> /dev/null; do
    wait "$child"
    code=$?
  done
  child=
  rm -f "$owned/pid"
  now=$(date +%s)
  spent=$(cat "$n/spent" 2> /dev/null || echo 0)
  echo $((spent + now - $(cat "$n/began"))) > "$n/.spent" && mv -f "$n/.spent" "$n/spent"
  rm -f "$n/began"
  # One that was just starting has no checkpoint to write, and has lost nothing.
  [ -n "$stopped" ] && [ "$code" = 143 ] && code=75
  # A full disk is no fault of the training: with room it goes on.
  if [ "$code" != 0 ] && [ "$code" != 75 ] && is_full; then
    echo 'the disk is full: with room there, stratus launch resume goes on' >> "$n/log.txt"
    code=75
  fi
  # Nothing fails because the time is over.
  [ "$code" != 0 ] && over && code=75
  echo "$code" > "$n/.exit" && mv -f "$n/.exit" "$n/exit"
  wait "$telling"
  case $code in
    0) notice end "$n" "$code" ;;
    75) ;;
    *) notice failure "$n" "$code" ;;
  esac
}
