//! llama.cpp: `llama-bench -o json` and `llama-completion`, with and without repacked weights and
//! flash attention.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::{Rival, Sample, words};
use crate::work::{Group, Job, Work};

/// Repacking and flash attention.
const VARIANTS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

/// llama.cpp.
#[derive(Debug)]
pub struct Llama {
    folder: PathBuf,
}

impl Llama {
    /// Uses the programs in a folder.
    pub fn new(folder: &Path) -> Llama {
        Llama { folder: folder.to_owned() }
    }
}

impl Rival for Llama {
    fn name(&self) -> &str {
        "llama.cpp"
    }

    fn variants(&self) -> Vec<String> {
        let names =
            VARIANTS.iter().map(|&(repack, flash)| format!("repack {} fa {}", u8::from(repack), u8::from(flash)));
        names.collect()
    }

    fn command(&self, variant: usize, job: &Job) -> Option<Vec<OsString>> {
        let &(repack, flash) = VARIANTS.get(variant)?;
        let threads = job.threads.to_string();
        match job.group {
            Group::Prefill | Group::Decode | Group::Depth(_) => {
                let mut command = bench(&self.folder, job);
                command.extend(words([&"-d", &job.depth().to_string()]));
                let (repack, flash) = (u8::from(repack).to_string(), u8::from(flash).to_string());
                command.extend(words([&"--repack", &repack, &"-fa", &flash]));
                Some(command)
            }
            Group::FirstToken => {
                let program = self.folder.join("llama-completion");
                let mut command = words([&program, &"-m", &job.model, &"-p", &job.prompt, &"-n", &"1"]);
                // A warm-up would be a second run of the model and count against llama.cpp.
                command.extend(words([&"-no-cnv", &"--no-warmup", &"--temp", &"0", &"-c", &"512", &"-t", &threads]));
                let (repack, flash) =
                    (if repack { "--repack" } else { "--no-repack" }, if flash { "on" } else { "off" });
                command.extend(words([&repack, &"-fa", &flash]));
                Some(command)
            }
            Group::Layer => None,
        }
    }

    fn read(&self, job: &Job, stdout: &str) -> anyhow::Result<Vec<Sample>> {
        match job.group {
            Group::FirstToken => Ok(Vec::new()),
            Group::Prefill | Group::Decode | Group::Depth(_) | Group::Layer => read_bench(stdout),
        }
    }
}

/// Returns the command of `llama-bench` for a job, with only those options that llama.cpp and
/// ik_llama.cpp both have.
pub fn bench(folder: &Path, job: &Job) -> Vec<OsString> {
    let (threads, repetitions) = (job.threads.to_string(), job.repetitions.to_string());
    let program = folder.join("llama-bench");
    let mut command = words([&program, &"-o", &"json", &"-m", &job.model, &"-t", &threads, &"-r", &repetitions]);
    command.extend(words([&"-p", &job.prefills(), &"-n", &job.decodes()]));
    command
}

/// Reads the output of `llama-bench -o json`, which llama.cpp and ik_llama.cpp both have. llama.cpp
/// prints `n_depth`; ik_llama.cpp prints a prompt before the generated tokens instead.
pub fn read_bench(stdout: &str) -> anyhow::Result<Vec<Sample>> {
    #[derive(Deserialize)]
    struct Row {
        n_prompt: usize,
        n_gen: usize,
        #[serde(default)]
        n_depth: usize,
        samples_ts: Vec<f64>,
    }
    let rows: Vec<Row> = serde_json::from_str(stdout).context("this is not what `llama-bench -o json` prints")?;
    let samples = rows.into_iter().map(|row| {
        let work = match (row.n_prompt, row.n_gen, row.n_depth) {
            (tokens, 0, 0) if tokens > 0 => Work::Prefill { tokens },
            (0, tokens, depth) if tokens > 0 => Work::Decode { tokens, depth },
            (depth, tokens, 0) if tokens > 0 => Work::Decode { tokens, depth },
            (prompt, tokens, depth) => bail!("unexpected test in the output: pp{prompt} tg{tokens} at depth {depth}"),
        };
        Ok(Sample { work, values: row.samples_ts, bytes_per_token: None, exchanged: None })
    });
    samples.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from version 0c1e570, one row for each test; unused fields are left out.
    const RECORDED: &str = r#"[
  { "build_commit": "0c1e570", "n_threads": 2, "flash_attn": 0, "repack": false, "n_prompt": 8, "n_gen": 0, "n_depth": 0,
    "avg_ns": 449562726, "avg_ts": 17.933089, "samples_ns": [ 489002363, 410123089 ], "samples_ts": [ 16.3598, 19.5063 ] },
  { "build_commit": "0c1e570", "n_threads": 2, "flash_attn": 1, "repack": true, "n_prompt": 0, "n_gen": 4, "n_depth": 64,
    "avg_ns": 140000000, "avg_ts": 28.5, "samples_ns": [ 140000000 ], "samples_ts": [ 28.5 ] }
]"#;

    #[test]
    fn reads_prefill_and_decode_at_a_depth() {
        let samples = read_bench(RECORDED).unwrap();
        let prefill = Sample {
            work: Work::Prefill { tokens: 8 },
            values: vec![16.3598, 19.5063],
            bytes_per_token: None,
            exchanged: None,
        };
        let decode = Sample {
            work: Work::Decode { tokens: 4, depth: 64 },
            values: vec![28.5],
            bytes_per_token: None,
            exchanged: None,
        };
        assert_eq!(samples, [prefill, decode]);
    }

    #[test]
    fn ik_llama_prompt_length_becomes_decode_depth() {
        let samples = read_bench(r#"[{"n_prompt": 64, "n_gen": 4, "samples_ts": [3.0]}]"#).unwrap();
        assert_eq!(samples[0].work, Work::Decode { tokens: 4, depth: 64 });
    }

    #[test]
    fn malformed_bench_output_is_refused() {
        assert!(read_bench("error: failed to load model").is_err());
        assert!(read_bench(r#"[{"n_prompt": 0, "n_gen": 0, "samples_ts": []}]"#).is_err());
    }

    #[test]
    fn every_variant_has_a_command_of_its_own() {
        let llama = Llama::new(Path::new("bin"));
        let work = Work::Decode { tokens: 4, depth: 64 };
        let job = Job {
            group: Group::Depth(64),
            works: vec![work],
            model: "m.gguf".into(),
            threads: 2,
            repetitions: 3,
            prompt: String::new(),
        };
        let commands: Vec<_> = (0..5).map(|variant| llama.command(variant, &job)).collect();
        assert_eq!(llama.variants().len(), 4);
        assert!(commands[4].is_none());
        let text = |index: usize| {
            let command: &Vec<OsString> = commands[index].as_ref().unwrap();
            command.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(text(2), "bin/llama-bench -o json -m m.gguf -t 2 -r 3 -p 0 -n 4 -d 64 --repack 0 -fa 1");
        assert_ne!(text(0), text(1));
    }
}
