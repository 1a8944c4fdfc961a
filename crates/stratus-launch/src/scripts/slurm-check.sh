# slurm-check < batch script: checks that Slurm is installed and would accept the job.
for program in sbatch squeue scancel; do
  command -v "$program" > /dev/null 2>&1 || {
    echo "$program not found" >&2
    exit 30
  }
done
sbatch --test-only
