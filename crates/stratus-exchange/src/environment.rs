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
    /// The rank of this process among those on its machine, and their number, if the launcher tells both.
    pub local: Option<[usize; 2]>,
    /// True if the processes of a machine share its CPUs; `srun` gives each its own.
    pub shares_cpus: bool,
}

/// Environment variables of a launcher whose processes share the CPUs of a machine: rank, size, local rank,
/// local size.
const LAUNCHERS: [(&str, [&str; 4]); 2] = [
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
        valid(LaunchInfo { launcher, rank, size, local, shares_cpus: true })
    };
    let info = LAUNCHERS.into_iter().find_map(launched_by);
    // `srun --mpi=pmi2` sets the first two variables of `mpiexec` too, but not the local ones.
    let is_same = |step: &LaunchInfo| {
        info.is_none_or(|info| info.local.is_none() && (info.rank, info.size) == (step.rank, step.size))
    };
    slurm_step(variable).filter(is_same).or(info)
}

/// The position of this process in a job step of Slurm. Only variables of a step count, since a batch job has
/// the others even if no `srun` starts its processes.
fn slurm_step(variable: impl Fn(&str) -> Option<String>) -> Option<LaunchInfo> {
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    let (rank, size) = (number("SLURM_PROCID")?, number("SLURM_STEP_NUM_TASKS")?);
    let of_node = || tasks_of_node(&variable("SLURM_STEP_TASKS_PER_NODE")?, number("SLURM_NODEID")?);
    let local = number("SLURM_LOCALID").zip(of_node()).map(|(rank, size)| [rank, size]);
    valid(LaunchInfo { launcher: "srun", rank, size, local, shares_cpus: false })
}

/// The number of tasks of a node of a step, from Slurm's list such as `2(x3),1`: two tasks on each of the
/// first three nodes, and one on the fourth.
fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut end = 0_usize;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        end = end.checked_add(nodes)?;
        if node < end {
            return tasks.parse().ok();
        }
    }
    None
}

/// The position, unless it is that of a single process or impossible. An impossible local rank is dropped.
fn valid(mut info: LaunchInfo) -> Option<LaunchInfo> {
    info.local = info.local.filter(|[rank, size]| rank < size && *size <= info.size);
    (info.size > 1 && info.rank < info.size).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info_of(set: &[(&str, &str)]) -> Option<LaunchInfo> {
        launch_info_from(|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn detects_the_launcher_from_its_variables() {
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
        let launched = info_of(local).unwrap();
        assert_eq!((launched.local, launched.shares_cpus), (Some([1, 2]), true));
    }

    /// The variables of Slurm 22.05 with `--mpi=pmi2` for the last task of two nodes with two tasks each.
    const STEP: [(&str, &str); 7] = [
        ("PMI_RANK", "3"),
        ("PMI_SIZE", "4"),
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
    ];

    #[test]
    fn local_rank_of_a_slurm_step_is_that_on_its_node() {
        let srun = LaunchInfo { launcher: "srun", rank: 3, size: 4, local: Some([1, 2]), shares_cpus: false };
        assert_eq!(info_of(&STEP), Some(srun));
        // Without PMI, as with `--mpi=pmix`.
        assert_eq!(info_of(&STEP[2..]), Some(srun));
        // An `mpiexec` that `srun` started on each node, whose step has two tasks.
        let mut nested = STEP.to_vec();
        nested[2..4].clone_from_slice(&[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")]);
        nested.extend([("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")]);
        let launched = info_of(&nested).unwrap();
        assert_eq!((launched.launcher, launched.rank, launched.shares_cpus), ("mpiexec", 3, true));
    }

    #[test]
    fn damaged_variables_give_no_local_rank() {
        for (at, value) in [(4, "2"), (4, "-1"), (5, "2"), (6, "2(x"), (6, ""), (6, "9(x2)"), (6, "2(xx)")] {
            let mut step = STEP;
            step[at].1 = value;
            let launched = info_of(&step).unwrap();
            assert_eq!((launched.rank, launched.local), (3, None), "{step:?}");
        }
    }

    #[test]
    fn tasks_of_a_node_follow_from_the_list_of_a_step() {
        let at = |node| tasks_of_node("2(x3),1", node);
        assert_eq!([at(0), at(2), at(3), at(4)], [Some(2), Some(2), Some(1), None]);
        assert_eq!(tasks_of_node("1(x18446744073709551615),1(x9)", usize::MAX), None);
    }
}
