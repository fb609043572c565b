//! The transport over MPI, for ranks in several processes and on several machines.
//!
//! | module | what it owns |
//! | --- | --- |
//! | `connection` | the start of MPI in this process |
//! | `ending` | its end, also after a failure |
//! | `library` | MPI's functions, with errors of our own |
//! | `mpi_link` | nonblocking messages, and the buffers that MPI uses meanwhile |
//!
//! No library crate depends on this one. Only the program depends on it, with its feature `mpi`,
//! and passes `connect` to the commands. Without that feature this crate is empty, and the build
//! needs no MPI.
//!
//! Invariant: only `connect` and the end of a run wait for another rank. A wait elsewhere would
//! stop the heartbeats, and one rank that hangs could stop the others.

#![cfg(feature = "mpi")]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod connection;
mod ending;
mod library;
mod mpi_link;

pub use connection::{ConnectError, connect};
pub use ending::Report;
