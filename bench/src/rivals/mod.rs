//! The engines: one file each, one row each in [`table`].
//!
//! An engine returns the command for a [`Job`] and reads the command's output. It runs no program
//! itself.

mod ik;
mod ixc;
mod kt;
mod llama;
mod mistralrs;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::report::RankTraffic;
use crate::work::{Job, Work};

/// Measurements of one work.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Measured work.
    pub work: Work,
    /// One value for each repetition, in the work's unit.
    pub values: Vec<f64>,
    /// Least number of bytes that each token reads, if the engine prints it.
    pub bytes_per_token: Option<u64>,
    /// Messages between ranks, if there are several.
    pub exchanged: Option<RankTraffic>,
}

/// An engine.
pub trait Rival: Sync {
    /// Returns the engine's name; the best of the entrants with the same name counts.
    fn name(&self) -> &str;

    /// Returns names of the engine's variants; one empty name if it has no variants.
    fn variants(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// Returns the command that does this job in a variant, or `None` if the engine cannot do the
    /// job.
    fn command(&self, variant: usize, job: &Job) -> Option<Vec<OsString>>;

    /// Returns the samples in the command's output. It is empty for [`Work::FirstToken`], which is
    /// the time of the whole command.
    ///
    /// # Errors
    /// If the output is not in the engine's format.
    fn read(&self, job: &Job, stdout: &str) -> anyhow::Result<Vec<Sample>>;
}

/// Command line options with the paths of the engines.
#[derive(Debug, clap::Args)]
pub struct Places {
    /// The ixc program, with a label if several builds are compared: `new=target/release/ixc`.
    /// After an `@`, the target to compile for. Ratios are relative to the first program.
    #[arg(long, value_name = "[LABEL=]PROGRAM[@TARGET]", required = true)]
    ixc: Vec<String>,
    /// Command that starts the ixc program of a label, such as `ranks=mpirun -n 2`; split at
    /// spaces.
    #[arg(long, value_name = "LABEL=COMMAND")]
    launcher: Vec<String>,
    /// File in place of the models for the ixc program of a label, such as a plan for several
    /// ranks.
    #[arg(long, value_name = "LABEL=FILE")]
    file: Vec<String>,
    /// Number of processes that the launcher of a label starts. They divide the threads equally.
    #[arg(long, value_name = "LABEL=N")]
    processes: Vec<String>,
    /// The folder with llama.cpp's llama-bench and llama-completion.
    #[arg(long, value_name = "DIR")]
    llama: Option<PathBuf>,
    /// The folder with ik_llama.cpp's llama-bench.
    #[arg(long, value_name = "DIR")]
    ik: Option<PathBuf>,
    /// The Python that has mistralrs.
    #[arg(long, value_name = "PYTHON")]
    mistralrs: Option<PathBuf>,
    /// The Python that has kt-kernel.
    #[arg(long, value_name = "PYTHON")]
    kt: Option<PathBuf>,
    /// The folder with the scripts for engines that are Python packages.
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/peers"))]
    peers: PathBuf,
}

/// Returns the engines, ixc first.
///
/// # Errors
/// If an option names a label that no ixc program has, or a number of processes is malformed.
pub fn table(places: &Places) -> anyhow::Result<Vec<Box<dyn Rival>>> {
    let mut rivals: Vec<Box<dyn Rival>> = Vec::new();
    let mut builds: Vec<ixc::Ixc> = places.ixc.iter().map(|choice| ixc::Ixc::new(choice)).collect();
    type SetOption = fn(&mut ixc::Ixc, &str) -> anyhow::Result<()>;
    let options: [(&str, &[String], SetOption); 3] = [
        ("--launcher", &places.launcher, |build, command| {
            build.launcher = command.split_whitespace().map(OsString::from).collect();
            Ok(())
        }),
        ("--file", &places.file, |build, file| {
            build.file = Some(file.into());
            Ok(())
        }),
        ("--processes", &places.processes, |build, number| {
            build.processes = number.parse().context("the number of processes is malformed")?;
            ensure!(build.processes > 0, "there must be at least one process");
            Ok(())
        }),
    ];
    for (option, values, set) in options {
        for value in values {
            let (label, rest) =
                value.split_once('=').with_context(|| format!("{option} {value}: expected LABEL=VALUE"))?;
            let mut named = builds.iter_mut().filter(|build| build.label.as_deref() == Some(label)).peekable();
            ensure!(named.peek().is_some(), "{option} {value}: no --ixc has the label {label}");
            named.try_for_each(|build| set(build, rest)).with_context(|| format!("{option} {value}"))?;
        }
    }
    rivals.extend(builds.into_iter().map(|build| Box::new(build) as Box<dyn Rival>));
    let script = |name: &str| places.peers.join(name);
    rivals.extend(places.llama.iter().map(|folder| Box::new(llama::Llama::new(folder)) as Box<dyn Rival>));
    rivals.extend(places.ik.iter().map(|folder| Box::new(ik::Ik::new(folder)) as Box<dyn Rival>));
    rivals.extend(
        places
            .mistralrs
            .iter()
            .map(|python| Box::new(mistralrs::Mistralrs::new(python, script("mistralrs_bench.py"))) as Box<dyn Rival>),
    );
    rivals.extend(places.kt.iter().map(|python| Box::new(kt::Kt::new(python, script("kt_moe.py"))) as Box<dyn Rival>));
    Ok(rivals)
}

/// Converts words to a command.
fn words<const N: usize>(words: [&dyn AsRef<std::ffi::OsStr>; N]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// Reads the lines that the drivers in `bench/peers` print: JSON objects with `test`, `tokens`,
/// `depth` and `values`. Engines may print other lines among them.
fn read_driver(stdout: &str) -> anyhow::Result<Vec<Sample>> {
    #[derive(serde::Deserialize)]
    struct Row {
        test: String,
        tokens: usize,
        #[serde(default)]
        depth: usize,
        values: Vec<f64>,
    }
    let rows = stdout.lines().filter_map(|line| line.strip_prefix("RESULT "));
    let samples = rows.map(|line| {
        let row: Row =
            serde_json::from_str(line).with_context(|| format!("this line is not a result in JSON: {line}"))?;
        let work = match row.test.as_str() {
            "prefill" => Work::Prefill { tokens: row.tokens },
            "decode" => Work::Decode { tokens: row.tokens, depth: row.depth },
            "layer" => Work::Layer { tokens: row.tokens },
            other => anyhow::bail!("a result names the unknown test {other}; expected prefill, decode or layer"),
        };
        Ok(Sample { work, values: row.values, bytes_per_token: None, exchanged: None })
    });
    samples.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_print_results_among_other_lines() {
        let text = "loading\nRESULT {\"test\": \"decode\", \"tokens\": 8, \"depth\": 64, \"values\": [1.5, 2]}\nbye\n";
        let work = Work::Decode { tokens: 8, depth: 64 };
        assert_eq!(
            read_driver(text).unwrap(),
            [Sample { work, values: vec![1.5, 2.0], bytes_per_token: None, exchanged: None }]
        );
        assert!(read_driver("RESULT {}").is_err());
        assert!(read_driver("RESULT {\"test\": \"sleep\", \"tokens\": 8, \"values\": []}").is_err());
        assert_eq!(read_driver("").unwrap(), []);
    }
}
