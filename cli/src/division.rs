//! The options of a model on several ranks: its division, and the machines of the ranks.

use std::path::Path;

use ixc_compile::Error as CompileError;
use ixc_compile::cluster::machines::{self, Machines};
use ixc_passes::shard::Division;

/// Default machines.
const DEFAULT_MACHINES: &str = "xeon-6980p";

/// Division in an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DivisionOption {
    /// The fastest one, by a forecast
    Auto,
    /// Ranges of layers; results have the bits of a plan for one rank
    Layers,
    /// Experts of each layer
    Experts,
    /// Heads of attention, and rows and columns of weights
    Tensors,
}

impl DivisionOption {
    /// Returns the division; `None` for the fastest one.
    pub fn division(self) -> Option<Division> {
        match self {
            DivisionOption::Auto => None,
            DivisionOption::Layers => Some(Division::Layers),
            DivisionOption::Experts => Some(Division::Experts),
            DivisionOption::Tensors => Some(Division::Tensors),
        }
    }
}

/// The machines of a forecast.
#[derive(Debug, clap::Args)]
pub struct MachineChoice {
    /// Machines of the ranks: xeon-6980p, xeon-6980p-rdma, xeon-8575c, or a path that ends in .toml
    /// [default: xeon-6980p].
    #[arg(long, value_name = "NAME", requires = "ranks")]
    machines: Option<String>,
}

impl MachineChoice {
    fn name(&self) -> &str {
        self.machines.as_deref().unwrap_or(DEFAULT_MACHINES)
    }

    /// Returns the file that describes the machines, if the option names a file.
    pub fn file(&self) -> Option<&Path> {
        machines::file(self.name())
    }

    /// Reads the description of the machines.
    ///
    /// # Errors
    /// If no description has this name or path, or if the description is malformed.
    pub fn machines(&self) -> Result<Machines, ixc_error::Error> {
        machines::find(self.name()).map_err(CompileError::from).map_err(ixc_error::Error::from)
    }
}
