# slurm-check < batch script: whether Slurm is there and would take such a job.
for program in sbatch squeue scancel; do
  command -v "$program" > /dev/null 2>&1 || {
    echo "$program is not there" >&2
    exit 30
  }
done
sbatch --test-only
