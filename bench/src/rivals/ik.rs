//! ik_llama.cpp: its `llama-bench`, with and without repacking weights when they are loaded. Flash
//! attention and fused experts are its defaults: it is slower without them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::llama::{bench, read_bench};
use super::{Rival, Sample, words};
use crate::work::{Group, Job};

/// ik_llama.cpp.
#[derive(Debug)]
pub struct Ik {
    folder: PathBuf,
}

impl Ik {
    /// Uses the program in a folder.
    pub fn new(folder: &Path) -> Ik {
        Ik { folder: folder.to_owned() }
    }
}

impl Rival for Ik {
    fn name(&self) -> &str {
        "ik_llama.cpp"
    }

    fn variants(&self) -> Vec<String> {
        vec!["rtr 0".into(), "rtr 1".into()]
    }

    fn command(&self, variant: usize, job: &Job) -> Option<Vec<OsString>> {
        let mut command = bench(&self.folder, job);
        match job.group {
            Group::Prefill | Group::Decode => {}
            Group::Depth(depth) => {
                // The program has no option for the depth. A test that generates after a prompt
                // excludes the prompt from the time.
                command.truncate(command.len() - 4);
                command.extend(words([&"-p", &"0", &"-n", &"0", &"-gp", &format!("{depth},{}", job.decodes())]));
            }
            Group::FirstToken | Group::Layer => return None,
        }
        command.extend(words([&"-rtr", &variant.to_string()]));
        Some(command)
    }

    fn read(&self, _job: &Job, stdout: &str) -> anyhow::Result<Vec<Sample>> {
        read_bench(stdout)
    }
}
