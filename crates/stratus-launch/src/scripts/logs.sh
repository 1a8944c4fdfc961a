# logs ROOT JOB REPETITION OFFSET: prints the log after OFFSET bytes.
cd "$1/jobs/$2" || exit 11
[ -f "$3/log.txt" ] || exit 0
tail -c "+$(($4 + 1))" "$3/log.txt"
