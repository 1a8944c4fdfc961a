# list ROOT JOB REPETITION: lists the files of a run with their sizes.
cd "$1/jobs/$2" || exit 11
cd "$3/run" 2> /dev/null || exit 0
# Checkpoints first: rows newer than the checkpoint are truncated on resume. Files that are being written are
# skipped, files that are removed meanwhile are not listed.
find ./checkpoints -name '.*.tmp' -prune -o -type f -exec stat -c '%s %n' {} + 2> /dev/null
find . -name '.*.tmp' -prune -o -path ./checkpoints -prune -o -type f -exec stat -c '%s %n' {} + 2> /dev/null
exit 0
