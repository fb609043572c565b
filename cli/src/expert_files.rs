//! Files of expert use: a run writes counts of chosen experts, and a later run reads them to keep
//! the most used experts in memory.
//!
//! ```text
//! ixc run large.gguf -f questions.txt --memory 12GiB --expert-stats hot.json
//! ixc run large.gguf --chat --memory 12GiB --pin-experts hot.json
//!
//! # Counts grow from run to run:
//! ixc serve large.gguf --memory 12GiB --expert-stats hot.json --pin-experts hot.json
//! ```

use std::path::{Path, PathBuf};

use ixc_files::Output;
use ixc_generate::expert_use::{self, ExpertUse};
use ixc_runtime::engine::{Engine, Pins};

use super::force::{Force, reads};
use super::output::note;
use super::ranks;

/// Default share of the expert memory for pinned experts, in percent. Texts that use other experts
/// cannot use this memory.
const PERCENT: u32 = 50;

/// Files of expert use.
#[derive(Clone, Debug, clap::Args)]
pub struct ExpertFiles {
    /// Write how often each expert was chosen, as JSON for --pin-experts or for plots.
    #[arg(long, value_name = "FILE")]
    expert_stats: Option<PathBuf>,
    /// Keep the experts in memory that were used most by the counts in this file of --expert-stats.
    /// They are read before the first token. If --expert-stats names the same file, it may be
    /// missing at first, and its counts grow with each run.
    #[arg(long, value_name = "FILE")]
    pin_experts: Option<PathBuf>,
    /// Share of the expert memory for pinned experts, in percent [default: 50].
    #[arg(long, value_name = "PERCENT", requires = "pin_experts", value_parser = clap::value_parser!(u32).range(1..=100))]
    pin_percent: Option<u32>,
}

/// Counts of earlier runs, and the output for new counts.
pub struct ExpertRecord {
    output: Option<Output>,
    before: Option<ExpertUse>,
    /// Whether new counts are added to the counts in the file.
    adds: bool,
    percent: u32,
}

impl ExpertFiles {
    /// Returns whether counts are written.
    pub fn writes(&self) -> bool {
        self.expert_stats.is_some()
    }

    /// Returns the file of counts that are written.
    pub fn output(&self) -> Option<&Path> {
        self.expert_stats.as_deref()
    }

    /// Returns whether counts are read.
    pub fn reads(&self) -> bool {
        self.pin_experts.is_some()
    }

    /// Reads the counts of earlier runs, and opens the output for new counts. The output must not
    /// be one of `inputs`, the other files that the command reads.
    ///
    /// # Errors
    /// When one of the files cannot be opened or has another format.
    pub fn open(&self, force: Force, inputs: &[&Path]) -> anyhow::Result<ExpertRecord> {
        let stats = self.expert_stats.as_deref().filter(|_| !ranks::is_follower());
        let pins = self.pin_experts.as_deref();
        let adds = stats.zip(pins).is_some_and(|(stats, pins)| is_same(stats, pins));
        // The output replaces its file only at the end, so it may be the file with earlier counts.
        let inputs: Vec<&Path> = inputs.iter().copied().chain(pins.filter(|_| !adds)).collect();
        let output = stats.map(|path| force.open(path, &expert_use::KIND, &inputs)).transpose()?;
        let begins = adds && pins.is_some_and(|path| !path.exists());
        let before = pins.filter(|_| !begins).map(ExpertUse::read).transpose().map_err(ixc_error::Error::from)?;
        Ok(ExpertRecord { output, before, adds, percent: self.pin_percent.unwrap_or(PERCENT) })
    }
}

/// Returns whether both paths name the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let found = |path: &Path| path.canonicalize().ok();
    one == other || found(one).is_some_and(|one| Some(one) == found(other))
}

impl ExpertRecord {
    /// Returns the experts that stay in memory.
    pub fn pins(&self) -> Option<Pins> {
        self.before.as_ref().map(|before| Pins { chosen: before.chosen.clone(), percent: self.percent })
    }

    /// Registers further input files, which the output must not overwrite. Prints a note if pinning
    /// has no effect, because all experts stay in memory.
    pub fn add_inputs<'p>(
        &mut self,
        engine: &Engine,
        inputs: impl IntoIterator<Item = &'p Path>,
    ) -> Result<(), ixc_error::Error> {
        if self.before.is_some() && engine.stream().is_none() {
            note!("ixc: --pin-experts has no effect: this plan does not stream experts from the drive");
        }
        self.output.as_mut().map_or(Ok(()), |output| reads(output, inputs))
    }

    /// Writes the counts, if the user asked for them.
    ///
    /// # Errors
    /// If writing to the output fails.
    pub fn write(self, used: impl FnOnce() -> ExpertUse) -> Result<(), ixc_error::Error> {
        let Some(output) = self.output else { return Ok(()) };
        let used = match &self.before {
            Some(before) if self.adds => used().plus(before),
            None | Some(_) => used(),
        };
        Ok(used.write(output)?)
    }
}
