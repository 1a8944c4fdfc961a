# revoke ROOT JOB: stops the training process of a repetition that another host has now. The script continues.
cd "$1/jobs/$2" || exit 11
pid=$(cat pid 2> /dev/null)
[ -n "$pid" ] && kill -TERM "$pid" 2> /dev/null
exit 0
