# list ROOT JOB REPETITION: the files of its run, with their sizes.
cd "$1/jobs/$2" || exit 11
cd "$3/run" 2> /dev/null || exit 0
# Checkpoints first: rows that are ahead of them do no harm to whoever goes on with the run. What is being
# written comes when it is whole, and what goes meanwhile is not there.
find ./checkpoints -name '.*.tmp' -prune -o -type f -exec stat -c '%s %n' {} + 2> /dev/null
find . -name '.*.tmp' -prune -o -path ./checkpoints -prune -o -type f -exec stat -c '%s %n' {} + 2> /dev/null
exit 0
