//! ixc: `ixc bench --json` and `ixc run`. A layer of experts runs in this program, which links ixc
//! as a library.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use serde::Deserialize;

use super::{Rival, Sample, read_driver, words};
use crate::report::RankTraffic;
use crate::work::{Group, Job, Work};

/// A build of ixc.
#[derive(Debug)]
pub struct Ixc {
    name: String,
    /// The label of the command line.
    pub label: Option<String>,
    program: PathBuf,
    target: Option<String>,
    /// Command that starts the program, such as `mpirun -n 2`.
    pub launcher: Vec<OsString>,
    /// File in place of the job's model.
    pub file: Option<PathBuf>,
    /// Number of processes that divide the threads of a job.
    pub processes: usize,
}

impl Ixc {
    /// Parses `[LABEL=]PROGRAM[@TARGET]`.
    pub fn new(choice: &str) -> Ixc {
        let (label, rest) = choice.split_once('=').map_or((None, choice), |(label, rest)| (Some(label), rest));
        let (program, target) = rest.rsplit_once('@').map_or((rest, None), |(program, target)| (program, Some(target)));
        let name = match (label, target) {
            (Some(label), _) => format!("ixc {label}"),
            (None, Some(target)) => format!("ixc {target}"),
            (None, None) => "ixc".to_owned(),
        };
        Ixc {
            name,
            label: label.map(str::to_owned),
            program: program.into(),
            target: target.map(str::to_owned),
            launcher: Vec::new(),
            file: None,
            processes: 1,
        }
    }
}

impl Rival for Ixc {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&self, _variant: usize, job: &Job) -> Option<Vec<OsString>> {
        // One thread cannot be divided between two processes.
        if !job.threads.is_multiple_of(self.processes) {
            return None;
        }
        let threads = (job.threads / self.processes).to_string();
        let model = self.file.as_ref().unwrap_or(&job.model);
        let repetitions = job.repetitions.to_string();
        let mut command = match job.group {
            Group::Prefill | Group::Decode | Group::Depth(_) => {
                let mut command = words([&self.program, &"bench", model, &"--json", &"-t", &threads]);
                let (prefills, decodes, depth) = (job.prefills(), job.decodes(), job.depth().to_string());
                command.extend(words([&"-p", &prefills, &"-n", &decodes, &"-d", &depth, &"-r", &repetitions]));
                command
            }
            Group::FirstToken => {
                let mut command = words([&self.program, &"run", model, &"--raw", &"-p", &job.prompt, &"-n", &"1"]);
                command.extend(words([&"--temp", &"0", &"-c", &"512", &"-t", &threads]));
                command
            }
            Group::Layer if !self.launcher.is_empty() || self.file.is_some() => return None,
            Group::Layer => {
                let mut command = words([&std::env::current_exe().ok()?, &"layer", &"--file", &job.model]);
                command.extend(words([&"--threads", &threads, &"--repetitions", &repetitions]));
                command
            }
        };
        if let Some(target) = &self.target {
            command.extend(words([&"--target", target]));
        }
        Some(self.launcher.iter().cloned().chain(command).collect())
    }

    fn read(&self, job: &Job, stdout: &str) -> anyhow::Result<Vec<Sample>> {
        match job.group {
            Group::FirstToken => Ok(Vec::new()),
            Group::Layer => read_driver(stdout),
            Group::Prefill | Group::Decode | Group::Depth(_) => read_bench(stdout),
        }
    }
}

fn read_bench(stdout: &str) -> anyhow::Result<Vec<Sample>> {
    #[derive(Deserialize)]
    struct Row {
        test: String,
        tokens: usize,
        #[serde(default)]
        depth: usize,
        bytes_per_token: Option<u64>,
        all: Vec<f64>,
        exchanged: Option<RankTraffic>,
    }
    /// Output of `ixc bench --json`. Older builds, before schema `ixc.bench.v1`, print only the
    /// rows; they can be compared too.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Document {
        Whole { rows: Vec<Row> },
        Rows(Vec<Row>),
    }
    let document = serde_json::from_str(stdout).context("this is not what `ixc bench --json` prints")?;
    let (Document::Whole { rows } | Document::Rows(rows)) = document;
    let samples = rows.into_iter().map(|row| {
        let work = match row.test.as_str() {
            "prefill" => Work::Prefill { tokens: row.tokens },
            _ => Work::Decode { tokens: row.tokens, depth: row.depth },
        };
        Sample { work, values: row.all, bytes_per_token: row.bytes_per_token, exchanged: row.exchanged }
    });
    Ok(samples.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rival_specs_have_labels_and_targets() {
        let parts = |choice| {
            let ixc = Ixc::new(choice);
            (ixc.name, ixc.program, ixc.target)
        };
        assert_eq!(parts("a/ixc"), ("ixc".into(), "a/ixc".into(), None));
        assert_eq!(parts("a/ixc@avx2"), ("ixc avx2".into(), "a/ixc".into(), Some("avx2".into())));
        assert_eq!(parts("new=a/ixc@avx2"), ("ixc new".into(), "a/ixc".into(), Some("avx2".into())));
    }

    #[test]
    fn processes_of_a_launcher_divide_the_threads() {
        let mut ixc = Ixc::new("ranks=a/ixc");
        ixc.launcher = vec!["mpirun".into(), "-n".into(), "2".into()];
        ixc.file = Some("plan.ixp".into());
        ixc.processes = 2;
        let works = vec![Work::Decode { tokens: 4, depth: 0 }];
        let job = |threads| Job {
            group: Group::Decode,
            works: works.clone(),
            model: "model.gguf".into(),
            threads,
            repetitions: 1,
            prompt: String::new(),
        };
        let command = ixc.command(0, &job(2)).unwrap();
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words.join(" "), "mpirun -n 2 a/ixc bench plan.ixp --json -t 1 -p 0 -n 4 -d 0 -r 1");
        assert_eq!(ixc.command(0, &job(1)), None);
    }

    #[test]
    fn ixc_bench_rows_are_parsed() {
        let text = r#"[
          {"threads": 2, "target": "avx2", "test": "prefill", "tokens": 32, "depth": 0, "bytes_per_token": null,
           "peak_memory": 1, "median": 2.0, "min": 1.0, "max": 3.0, "all": [1.0, 3.0, 2.0]},
          {"threads": 2, "target": "avx2", "test": "decode", "tokens": 4, "depth": 64, "bytes_per_token": 77,
           "peak_memory": 1, "median": 5.0, "min": 5.0, "max": 5.0, "all": [5.0]}]"#;
        let document = format!(r#"{{"schema": "ixc.bench.v1", "ixc": {{"version": "0.1.0"}}, "rows": {text}}}"#);
        assert_eq!(read_bench(&document).unwrap().len(), 2);
        let samples = read_bench(text).unwrap();
        assert_eq!(samples[0].values, [1.0, 3.0, 2.0]);
        assert_eq!((samples[1].work, samples[1].bytes_per_token), (Work::Decode { tokens: 4, depth: 64 }, Some(77)));
        assert!(read_bench("{}").is_err());
    }
}
