# revoke ROOT JOB: what is trained is another machine's now. The script goes on to its end.
cd "$1/jobs/$2" || exit 11
pid=$(cat pid 2> /dev/null)
[ -n "$pid" ] && kill -TERM "$pid" 2> /dev/null
exit 0
