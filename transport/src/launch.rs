//! Environment variables that a starter of parallel programs, such as `mpirun`, sets for each
//! process.

use std::ffi::OsString;

/// Names of the variables of one starter.
struct Variables {
    rank: &'static str,
    ranks: &'static str,
    /// Variable with the number of processes on this machine.
    local: &'static str,
}

/// The starters' variables, in the order in which they are tried.
const STARTERS: [Variables; 3] = [
    // Open MPI.
    Variables { rank: "OMPI_COMM_WORLD_RANK", ranks: "OMPI_COMM_WORLD_SIZE", local: "OMPI_COMM_WORLD_LOCAL_SIZE" },
    // MPICH, Intel MPI, and `srun --mpi=pmi2`.
    Variables { rank: "PMI_RANK", ranks: "PMI_SIZE", local: "MPI_LOCALNRANKS" },
    // `srun --mpi=pmix`. SLURM sets its own variables even without MPI.
    Variables { rank: "PMIX_RANK", ranks: "SLURM_NTASKS", local: "SLURM_NTASKS_PER_NODE" },
];

/// Position of this process among the processes that were started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Rank of this process.
    pub rank: u32,
    /// Number of processes, at least 2.
    pub ranks: u32,
    /// Number of processes on this machine, or 1 if the starter does not state it.
    pub local: u32,
}

impl Launch {
    /// Returns the position of this process, or `None` if it was started alone.
    pub fn current() -> Option<Launch> {
        Launch::find(|name| std::env::var_os(name))
    }

    fn find(variable: impl Fn(&str) -> Option<OsString>) -> Option<Launch> {
        let number = |name| variable(name)?.to_str()?.parse().ok();
        let launches = STARTERS.iter().filter_map(|Variables { rank, ranks, local }| {
            let local = number(local).unwrap_or(1).max(1);
            Some(Launch { rank: number(rank)?, ranks: number(ranks)?, local })
        });
        launches.into_iter().find(|launch| launch.ranks > 1 && launch.rank < launch.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Option<Launch> {
        Launch::find(|name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into()))
    }

    #[test]
    fn each_starter_is_found() {
        let expected = Some(Launch { rank: 1, ranks: 4, local: 1 });
        let with_two = Some(Launch { rank: 1, ranks: 4, local: 2 });
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(find(&open_mpi), expected);
        assert_eq!(find(&[&open_mpi[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat()), with_two);
        assert_eq!(find(&[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")]), with_two);
        assert_eq!(find(&[("PMIX_RANK", "1"), ("SLURM_NTASKS", "4")]), expected);
    }

    #[test]
    fn a_process_alone_has_no_launch() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
        assert_eq!(find(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]), None);
        assert_eq!(find(&[("PMI_RANK", "x"), ("PMI_SIZE", "4")]), None);
        assert_eq!(find(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4")]), None);
    }
}
