//! kt-kernel: the Python package `kt-kernel`, one layer of experts through `peers/kt_moe.py`. It runs no whole model on its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Rival, Sample, read_driver, words};
use crate::work::{Group, Job};

/// kt-kernel.
#[derive(Debug)]
pub struct Kt {
    python: PathBuf,
    script: PathBuf,
}

impl Kt {
    /// With a Python that has it, and the script.
    pub fn new(python: &Path, script: PathBuf) -> Kt {
        Kt { python: python.to_owned(), script }
    }
}

impl Rival for Kt {
    fn name(&self) -> &str {
        "kt-kernel"
    }

    fn command(&self, _variant: usize, job: &Job) -> Option<Vec<OsString>> {
        if job.group != Group::Layer {
            return None;
        }
        let mut command = words([&self.python, &self.script, &job.model]);
        let (threads, repetitions) = (job.threads.to_string(), job.repetitions.to_string());
        command.extend(words([&"--threads", &threads, &"--repetitions", &repetitions]));
        Some(command)
    }

    fn read(&self, _job: &Job, stdout: &str) -> anyhow::Result<Vec<Sample>> {
        read_driver(stdout)
    }
}
