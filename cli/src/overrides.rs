//! User overrides of a command that compiles: edited IR to start from, replaced kernels, and tuned
//! choices.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ixc_compile::compile::CompileOptions;
use ixc_compile::dump::read_stop;
use ixc_compile::replacements::Replacements;
use ixc_compile::tuned::TunedFile;

/// User's IR and kernels in place of generated ones.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ChangeChoice {
    /// Start from a file of `ixc compile --dump-dir` or `ixc dump --after`, edited or not, instead
    /// of the model's graph. Its first line names a pass; the passes after it run. Options of
    /// earlier passes have no effect, nor does a memory budget after `residency`.
    #[arg(long, value_name = "FILE")]
    start_from: Option<PathBuf>,
    /// Replace kernels of the plan by those in a file of kernel IR, or in a folder of NAME.ix files
    /// such as `ixc compile --dump-dir` writes. Each replaces the kernel of the same name and must
    /// have the same buffers and dims.
    #[arg(long = "override", value_name = "PATH")]
    kernels: Option<PathBuf>,
    /// Tilings measured by `ixc kernel tune`, from a file made on this machine for the same target;
    /// `none` uses cache sizes only [default: the file in the user's cache folder, unless --target
    /// is given].
    #[arg(long, value_name = "FILE|none")]
    tuned: Option<PathBuf>,
}

impl ChangeChoice {
    /// Returns whether the user gave any of these options.
    pub fn is_given(&self) -> bool {
        self.start_from.is_some() || self.kernels.is_some()
    }

    /// Returns the input files of these options.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let tuned = self.tuned.as_deref().filter(|file| *file != Path::new("none"));
        self.start_from.as_deref().into_iter().chain(tuned)
    }

    /// Returns `options` with these overrides.
    ///
    /// # Errors
    /// If a file cannot be read or has the wrong content.
    pub fn over(&self, options: CompileOptions, check: OverrideCheck) -> Result<CompileOptions, ixc_error::Error> {
        let start = self.start_from.as_deref().map(read_stop).transpose()?.map(Arc::new);
        let kernels = self.kernels.as_deref().map(Replacements::read).transpose()?.unwrap_or_default();
        let kernels = if check.no_override_check { kernels.without_check() } else { kernels };
        let tuned = match self.tuned.as_deref() {
            None => TunedFile::of_this_machine(),
            Some(none) if none == Path::new("none") => None,
            Some(file) => Some(TunedFile::from_path(file)?),
        };
        Ok(CompileOptions { start, kernels: Arc::new(kernels), tuned: tuned.map(Arc::new), ..options })
    }
}

/// Whether kernels of --override are checked, of a command whose kernels run.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct OverrideCheck {
    /// Do not check kernels of --override. Without this, each runs once with random inputs. Results
    /// must have the same bits as those of the replaced kernel, or be within the error bounds of
    /// its spec's formula.
    #[arg(long, requires = "kernels")]
    no_override_check: bool,
}

impl OverrideCheck {
    /// No check, for a command that only shows kernels.
    pub const OFF: OverrideCheck = OverrideCheck { no_override_check: true };
}
