//! The environment variables that a launcher sets for the processes it starts.

/// The position of this process among those that a launcher started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchInfo {
    /// The launcher's name.
    pub launcher: &'static str,
    /// The rank of this process.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// Local rank and local size on this machine, if the launcher sets both.
    pub local: Option<[usize; 2]>,
}

/// Environment variables of each launcher: rank, size, local rank, local size.
///
/// Slurm is last, and only its variables of a job step count, since a batch job has the others even if no
/// `srun` starts its processes. Local ranks are not read for `srun`, which gives each task its own CPUs.
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

/// The position of this process in a launched group; `None` without a launcher or for a single process.
#[must_use]
pub fn launch_info() -> Option<LaunchInfo> {
    launch_info_from(|name| std::env::var(name).ok())
}

fn launch_info_from(variable: impl Fn(&str) -> Option<String>) -> Option<LaunchInfo> {
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    let launched_by = |(launcher, [rank, size, local_rank, local_size]): (&'static str, [&str; 4])| {
        let (rank, size): (usize, usize) = (number(rank)?, number(size)?);
        let local = number(local_rank).zip(number(local_size)).map(|(rank, size)| [rank, size]);
        (size > 1 && rank < size).then_some(LaunchInfo { launcher, rank, size, local })
    };
    LAUNCHERS.into_iter().find_map(launched_by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_the_launcher_from_its_variables() {
        let info_of = |set: &'static [(&'static str, &'static str)]| {
            launch_info_from(|name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let launched = info_of(&[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("SLURM_PROCID", "0")]).unwrap();
        assert_eq!((launched.launcher, launched.rank, launched.size), ("mpiexec", 1, 4));
        // A batch job of eight tasks started without `srun`; a single process; an invalid rank.
        assert_eq!(info_of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), None);
        assert_eq!(info_of(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
        assert_eq!(info_of(&[("PMI_RANK", "5"), ("PMI_SIZE", "4")]), None);
        let srun = &[("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(info_of(srun).map(|launched| (launched.rank, launched.local)), Some((3, None)));
        let local =
            &[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
        assert_eq!(info_of(local).and_then(|launched| launched.local), Some([1, 2]));
    }
}
