# repetition N FOLDER: prints the state of a repetition; the folder has the heartbeat of its training script.
repetition() {
  echo "repetition=$1"
  [ -f "$1/exit" ] && echo "exit=$(head -c 20 "$1/exit")"
  [ -f "$1/reached" ] && echo "reached=$(head -c 20 "$1/reached")"
  [ -f "$1/log.txt" ] && echo "begun=1"
  [ -f "$1/run/epochs.csv" ] && echo "epochs=$(($(wc -l < "$1/run/epochs.csv") - 1))"
  # A checksum that changes when a file is added, grows or is removed.
  if [ -d "$1/run" ]; then
    stamp=$(cd "$1/run" && find . -type f -exec stat -c '%s %Y %n' {} + 2> /dev/null | cksum)
    echo "stamp=${stamp%% *}"
  fi
  spent=$(cat "$1/spent" 2> /dev/null)
  began=$(cat "$1/began" 2> /dev/null)
  beat=$(cat "$2/heartbeat" 2> /dev/null)
  case "$spent$began$beat" in
    *[!0-9]*) ;;
    *)
      # After a kill, the last heartbeat marks the end.
      { [ -n "$began" ] && [ "${beat:-0}" -gt "$began" ]; } || beat=$began
      [ -n "$spent$began" ] && echo "elapsed_s=$((${spent:-0} + ${beat:-0} - ${began:-0}))"
      ;;
  esac
  echo "last=$(tail -c 400 "$1/log.txt" 2> /dev/null | grep . | tail -n 1)"
}
# owner FOLDER: prints the current or last owner and the age of its heartbeat.
owner() {
  echo "owner=$(head -c 300 "$1/owner" 2> /dev/null | head -n 1)"
  beat=$(cat "$1/heartbeat" 2> /dev/null)
  case $beat in
    '' | *[!0-9]*) ;;
    *) echo "heartbeat_s=$(($(date +%s) - beat))" ;;
  esac
}
