# slurm-stop ROOT JOB: cancels waiting tasks and signals running ones to save a checkpoint and stop.
cd "$1/jobs/$2" || exit 11
me=$(id -un)
queued=$(squeue -h -u "$me" -n "$2" -o '%i') || exit 22
[ -n "$queued" ] || { echo idle; exit 0; }
: > stop
scancel -Q -u "$me" -n "$2" --state=PENDING
scancel -Q -u "$me" -n "$2" --state=RUNNING --batch --signal=TERM
echo asked
