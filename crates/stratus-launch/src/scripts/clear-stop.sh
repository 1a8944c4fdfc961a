# clear-stop ROOT JOB: withdraws a request to stop, which an idle host still has.
cd "$1/jobs/$2" || exit 11
rm -f stop
