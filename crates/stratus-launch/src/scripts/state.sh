# state ROOT JOB REPETITION…: how a job stands.
cd "$1/jobs/$2" || exit 11
shift 2
alive=1
flock -n -s owner.lock true && alive=0
echo "alive=$alive"
echo "owner=$(head -c 300 owner 2> /dev/null | head -n 1)"
beat=$(cat heartbeat 2> /dev/null)
case $beat in
  '' | *[!0-9]*) ;;
  *) echo "heartbeat_s=$(($(date +%s) - beat))" ;;
esac
for n in "$@"; do
  echo "repetition=$n"
  [ -f "$n/exit" ] && echo "exit=$(head -c 20 "$n/exit")"
  [ -f "$n/log.txt" ] && echo "begun=1"
  [ -f "$n/run/epochs.csv" ] && echo "epochs=$(($(wc -l < "$n/run/epochs.csv") - 1))"
  echo "last=$(tail -c 400 "$n/log.txt" 2> /dev/null | grep . | tail -n 1)"
done
