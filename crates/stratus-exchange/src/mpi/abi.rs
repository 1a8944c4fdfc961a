//! The binary interfaces of MPI: handles and constants.
//!
//! Handles are pointers in the standard interface and in Open MPI's, 32-bit integers in MPICH's. Here each is
//! stored in a machine word: the calling conventions of x86-64 and AArch64 pass an integer argument in the
//! lower half of a register and ignore the upper half.

/// The binary interface of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    /// The standard interface of MPI 5: `mpi_abi.h`.
    Standard,
    /// The interface of MPICH, Intel MPI, Cray MPICH and MVAPICH ("MPICH ABI Compatibility Initiative",
    /// 2013).
    Mpich,
    /// The interface of Open MPI, whose constants are addresses of objects in the library.
    OpenMpi,
}

/// The handles and constants of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constants {
    pub comm_world: usize,
    pub byte: usize,
    pub errors_return: usize,
    pub float: usize,
    pub sum: usize,
    pub status_ignore: usize,
    /// The thread level at which only one thread calls the library.
    pub thread_funneled: i32,
}

/// The objects of Open MPI whose addresses are its constants.
pub(super) const OPEN_MPI_OBJECTS: [&str; 5] =
    ["ompi_mpi_comm_world", "ompi_mpi_byte", "ompi_mpi_errors_return", "ompi_mpi_float", "ompi_mpi_op_sum"];

impl Abi {
    /// The constants of this interface; `objects` are the addresses of [`OPEN_MPI_OBJECTS`], used only for
    /// Open MPI.
    pub(super) fn constants(self, objects: [usize; 5]) -> Constants {
        match self {
            Self::Standard => Constants {
                comm_world: 0x101,
                byte: 0x247,
                errors_return: 0x143,
                float: 0x210,
                sum: 0x21,
                status_ignore: 0,
                thread_funneled: 1024,
            },
            Self::Mpich => Constants {
                comm_world: 0x4400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                float: 0x4c00_040a,
                sum: 0x5800_0003,
                status_ignore: 1,
                thread_funneled: 1,
            },
            Self::OpenMpi => Constants {
                comm_world: objects[0],
                byte: objects[1],
                errors_return: objects[2],
                float: objects[3],
                sum: objects[4],
                status_ignore: 0,
                thread_funneled: 1,
            },
        }
    }
}

/// True on platforms where handles can be passed as described in [the module](self).
pub(super) const IS_SUPPORTED_PLATFORM: bool =
    cfg!(all(unix, any(target_arch = "x86_64", target_arch = "aarch64"), target_endian = "little"));
