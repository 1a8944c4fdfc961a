//! What a launcher tells the processes that it starts.

/// A process that a launcher started, beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// What started it.
    pub launcher: &'static str,
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Its number among those of this machine, and how many these are, where the launcher says both.
    pub local: Option<[usize; 2]>,
}

/// Launchers, and the variables in which each says rank and size, and the same of those of the machine.
/// Slurm's say how many tasks a job has, whether or not they are started by `srun`: they come last, and count
/// with a step alone.
///
/// `srun` gives its tasks processors of their own.
const LAUNCHERS: [(&str, [&str; 4]); 3] = [
    (
        "Open MPI's mpirun",
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    ("mpiexec", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    ("srun", ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", ""]),
];

/// What this process was told, where a launcher started it beside others.
#[must_use]
pub fn launched() -> Option<Launched> {
    launched_by(|name| std::env::var(name).ok())
}

fn launched_by(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    let by = |(launcher, [rank, size, local_rank, local_size]): (&'static str, [&str; 4])| {
        let (rank, size): (usize, usize) = (number(rank)?, number(size)?);
        let local = number(local_rank).zip(number(local_size)).map(|(rank, size)| [rank, size]);
        (size > 1 && rank < size).then_some(Launched { launcher, rank, size, local })
    };
    LAUNCHERS.into_iter().find_map(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_apart() {
        let of = |set: &'static [(&'static str, &'static str)]| {
            launched_by(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        let launched = of(&[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("SLURM_PROCID", "0")]).unwrap();
        assert_eq!((launched.launcher, launched.rank, launched.size), ("mpiexec", 1, 4));
        // A batch job of eight tasks, started without `srun`; one process alone; nonsense.
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), None);
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
        assert_eq!(of(&[("PMI_RANK", "5"), ("PMI_SIZE", "4")]), None);
        let srun = &[("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(of(srun).map(|launched| (launched.rank, launched.local)), Some((3, None)));
        let local =
            &[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
        assert_eq!(of(local).and_then(|launched| launched.local), Some([1, 2]));
    }
}
