//! mistral.rs: the Python package `mistralrs`, through `peers/mistralrs_bench.py`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Rival, Sample, read_driver, words};
use crate::work::{Group, Job};

/// mistral.rs.
#[derive(Debug)]
pub struct Mistralrs {
    python: PathBuf,
    script: PathBuf,
}

impl Mistralrs {
    /// Uses a Python with the package `mistralrs`, and the driver script.
    pub fn new(python: &Path, script: PathBuf) -> Mistralrs {
        Mistralrs { python: python.to_owned(), script }
    }
}

impl Rival for Mistralrs {
    fn name(&self) -> &str {
        "mistral.rs"
    }

    fn command(&self, _variant: usize, job: &Job) -> Option<Vec<OsString>> {
        if let Group::FirstToken | Group::Layer = job.group {
            return None;
        }
        let mut command = words([&self.python, &self.script, &job.model]);
        let (threads, repetitions) = (job.threads.to_string(), job.repetitions.to_string());
        command.extend(words([&"--threads", &threads, &"--repetitions", &repetitions]));
        let (prefills, decodes, depth) = (job.prefills(), job.decodes(), job.depth().to_string());
        command.extend(words([&"--prefill", &prefills, &"--decode", &decodes, &"--depth", &depth]));
        Some(command)
    }

    fn read(&self, _job: &Job, stdout: &str) -> anyhow::Result<Vec<Sample>> {
        read_driver(stdout)
    }
}
