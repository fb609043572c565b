//! Inputs to mutate: files of the repository, inputs that code generates, and inputs that led to a
//! new kind of outcome.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ixc_ir::random::Random;

use crate::{Outcome, Target};

/// Max number of inputs that are kept because of a new kind of outcome.
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

/// Returns the files with inputs of a target, in order of their names. `folder` has a folder for
/// each target.
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
    /// Reads the inputs of a target: those that code generates, and the files in a folder.
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

    /// Returns the inputs of the corpus.
    pub fn inputs(&self) -> &[Vec<u8>] {
        &self.inputs
    }

    /// Returns a random input. Later inputs are more frequent, because their outcomes are rarer.
    pub fn pick(&self, random: &mut Random) -> &[u8] {
        let (a, b) = (random.index(self.inputs.len().max(1)), random.index(self.inputs.len().max(1)));
        self.inputs.get(a.max(b)).map_or(&[], Vec::as_slice)
    }

    /// Counts an outcome. If its kind is new, keeps the input. Returns whether the kind is new.
    pub fn count(&mut self, input: &[u8], outcome: &Outcome) -> bool {
        let is_new = self.kinds.insert(outcome.kind());
        if is_new && self.inputs.len() < MAX_INPUTS {
            self.inputs.push(input.to_vec());
        }
        is_new
    }

    /// Returns the number of different kinds of outcomes.
    pub fn kinds(&self) -> usize {
        self.kinds.len()
    }
}
