//! kt-kernel: the Python package `kt-kernel`, one layer of experts through `peers/kt_moe.py`. It
//! cannot run a whole model.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Rival, Sample, read_driver, words};
use crate::work::{Group, Job};

/// Builds and numbers of workers: kt-kernel's build for AVX2, and the build that it chooses for
/// this CPU. Each runs with as many workers as threads, and with one worker less. The calling
/// thread spins until the workers are done and takes a processor for that.
const VARIANTS: [(&str, bool); 4] = [("avx2", false), ("avx2", true), ("native", false), ("native", true)];

/// The engine kt-kernel, which a Python script runs.
#[derive(Debug)]
pub struct Kt {
    python: PathBuf,
    script: PathBuf,
}

impl Kt {
    /// Uses a Python with the package `kt-kernel`, and the driver script.
    pub fn new(python: &Path, script: PathBuf) -> Kt {
        Kt { python: python.to_owned(), script }
    }
}

impl Rival for Kt {
    fn name(&self) -> &str {
        "kt-kernel"
    }

    fn variants(&self) -> Vec<String> {
        let name = |(build, less): &(&str, bool)| format!("{build}{}", if *less { ", a worker less" } else { "" });
        VARIANTS.iter().map(name).collect()
    }

    fn command(&self, variant: usize, job: &Job) -> Option<Vec<OsString>> {
        if job.group != Group::Layer {
            return None;
        }
        let &(build, less) = VARIANTS.get(variant)?;
        let workers = job.threads.checked_sub(usize::from(less)).filter(|&workers| workers > 0)?;
        let (workers, repetitions) = (workers.to_string(), job.repetitions.to_string());
        let mut command = words([&self.python, &self.script, &job.model]);
        command.extend(words([&"--threads", &workers, &"--repetitions", &repetitions, &"--variant", &build]));
        Some(command)
    }

    fn read(&self, _job: &Job, stdout: &str) -> anyhow::Result<Vec<Sample>> {
        read_driver(stdout)
    }
}
