//! Options that choose a kernel, its target and its inputs.

use ixc_compile::compile::TargetName;
use ixc_compile::select::Selection;
use ixc_ir::kernel::Kernel;
use ixc_workbench::kernels::choose::{self, TargetKernel};
use ixc_workbench::kernels::run::{self, Case, Sizes};

use super::super::Usage;
use super::super::select::SelectChoice;

/// Kernel and its target.
#[derive(Debug, clap::Args)]
pub struct KernelChoice {
    /// Kernel: a row's name, a spec, FILE.ix or MODEL:NAME.
    #[arg(required = true, value_name = "KERNEL")]
    kernel: Vec<String>,
    /// Target or CPU to generate code for: `native`, or a name that `ixc doctor` lists.
    #[arg(long, default_value = "native")]
    target: TargetName,
    #[command(flatten)]
    select: SelectChoice,
}

impl KernelChoice {
    /// Returns the kernel's name as given, and whether ops or layers were selected as well.
    pub fn text(&self) -> (String, bool) {
        (self.kernel.join(" "), !self.selection().is_all())
    }

    /// Returns the selected ops and layers.
    pub fn selection(&self) -> Selection {
        self.select.selection()
    }

    /// Returns the target, and whether the user named it.
    pub fn target(&self) -> TargetName {
        self.target
    }

    /// Returns the kernel that the arguments name, for the target.
    pub fn choose(&self) -> anyhow::Result<TargetKernel> {
        // A spec without quotes is several arguments, so they are joined with spaces.
        let chosen = choose::choose_among(&self.kernel.join(" "), self.target.target, &self.selection());
        if chosen.is_err()
            && let Some((first, more)) = self.kernel.split_first()
            && choose::names_kernel(first)
            && let Some(second) = more.iter().find(|word| choose::names_kernel(word))
        {
            return Err(Usage(format!("found two kernels, {first} and {second}; expected one")).into());
        }
        Ok(chosen?)
    }
}

/// Inputs of a kernel.
#[derive(Debug, clap::Args)]
pub struct InputChoice {
    /// Rows of activations; for kernels over the KV cache, its blocks [default: the row's].
    #[arg(long, value_name = "N")]
    rows: Option<u32>,
    /// Values of the kernel's dims.
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "rows")]
    dims: Option<Vec<i64>>,
    /// Seed of the random inputs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl InputChoice {
    /// Returns the kernel with its inputs.
    pub fn case(&self, chosen: TargetKernel) -> anyhow::Result<Case> {
        Ok(Case::new(chosen, self.sizes(), self.seed)?)
    }

    /// Returns the values of the kernel's dims.
    pub fn dims(&self, chosen: &TargetKernel) -> anyhow::Result<Vec<i64>> {
        Ok(run::dims(chosen, self.sizes()).map_err(ixc_error::Error::from)?)
    }

    /// Returns the seed of the inputs.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn sizes(&self) -> Option<Sizes> {
        match (&self.dims, self.rows) {
            (Some(dims), _) => Some(Sizes::Dims(dims.clone())),
            (None, rows) => rows.map(Sizes::Rows),
        }
    }
}

/// Returns a kernel's dims as text: `groups 16, rest 0`.
pub fn dims_text(kernel: &Kernel, dims: &[i64]) -> String {
    let pairs = kernel.dims.iter().zip(dims);
    pairs.map(|(dim, value)| format!("{} {value}", dim.name)).collect::<Vec<_>>().join(", ")
}
