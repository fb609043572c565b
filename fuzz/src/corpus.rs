//! Inputs to mutate: files of the repository, inputs from code, and inputs with a new kind of
//! outcome.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ixc_ir::random::Random;

use crate::{Outcome, Target};

/// Max inputs that are kept for new kinds of outcomes.
const MAX_INPUTS: usize = 4000;

/// Inputs of a target.
#[derive(Debug, Default)]
pub struct Corpus {
    inputs: Vec<Vec<u8>>,
    kinds: HashSet<String>,
}

/// Returns the folder of the repository with the inputs of all targets.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Returns the files of a target in a folder of inputs, by name.
///
/// # Errors
/// If the folder exists and cannot be read.
pub fn files(folder: &Path, target: &str) -> io::Result<Vec<PathBuf>> {
    let folder = folder.join(target);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

impl Corpus {
    /// Reads the inputs of a target: those from code, and those in a folder.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(target: &Target, folder: &Path) -> io::Result<Corpus> {
        let mut inputs = (target.seeds)();
        for path in files(folder, target.name)? {
            inputs.push(fs::read(path)?);
        }
        Ok(Corpus { inputs, kinds: HashSet::new() })
    }

    /// Returns the inputs.
    pub fn inputs(&self) -> &[Vec<u8>] {
        &self.inputs
    }

    /// Returns a random input. Later ones are more frequent, because their outcomes are rarer.
    pub fn pick(&self, random: &mut Random) -> &[u8] {
        let (a, b) = (random.index(self.inputs.len().max(1)), random.index(self.inputs.len().max(1)));
        self.inputs.get(a.max(b)).map_or(&[], Vec::as_slice)
    }

    /// Counts an outcome, and keeps the input if the kind of outcome is new. Returns whether it is.
    pub fn count(&mut self, input: &[u8], outcome: &Outcome) -> bool {
        let is_new = self.kinds.insert(outcome.kind());
        if is_new && self.inputs.len() < MAX_INPUTS {
            self.inputs.push(input.to_vec());
        }
        is_new
    }

    /// Returns the number of kinds of outcomes.
    pub fn kinds(&self) -> usize {
        self.kinds.len()
    }
}
