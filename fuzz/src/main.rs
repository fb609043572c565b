//! Runner of the fuzz targets for the stable toolchain.
//!
//! ```text
//! ixc-fuzz list                              the targets
//! ixc-fuzz run gguf --seconds 20             one target
//! ixc-fuzz run --seconds 2                   all targets
//! ixc-fuzz replay                            all targets, only the inputs of the corpus
//! ixc-fuzz one gguf FILE                     one input
//! ```

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use ixc_fuzz::runner::{self, Report, RunnerOptions};
use ixc_fuzz::{TARGETS, Target, child, corpus, helper, targets};

/// Runs the fuzz targets: mutated inputs for each public entry that takes untrusted bytes.
#[derive(Debug, Parser)]
#[command(name = "ixc-fuzz")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the targets.
    List,
    /// Runs mutated inputs.
    Run(RunArgs),
    /// Runs the inputs of the corpus.
    Replay(RunArgs),
    /// Runs one input in this process.
    One {
        /// Name of the target.
        target: String,
        /// File with the input.
        file: PathBuf,
    },
    /// Runs the corpus in this process, for the runner.
    #[command(hide = true)]
    ReplayChild(ChildArgs),
    /// Runs mutated inputs in this process, for the runner.
    #[command(hide = true)]
    FuzzChild {
        #[command(flatten)]
        child: ChildArgs,
        /// Seed.
        seed: u64,
        /// Time in milliseconds.
        time: u64,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Targets; all by default.
    targets: Vec<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of inputs, one folder for each target.
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Folder for inputs with findings.
    #[arg(long)]
    findings: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ChildArgs {
    target: String,
    corpus: PathBuf,
    current: PathBuf,
}

impl RunArgs {
    fn options(&self) -> RunnerOptions {
        let corpus = self.corpus.clone().unwrap_or_else(corpus::folder);
        let findings = self.findings.clone().unwrap_or_else(|| runner::default_findings(&corpus));
        RunnerOptions { time: Duration::from_secs_f64(self.seconds), seed: self.seed, corpus, findings }
    }

    fn targets(&self) -> Result<Vec<&'static Target>> {
        match self.targets.is_empty() {
            true => Ok(TARGETS.iter().collect()),
            false => self.targets.iter().map(|name| find(name)).collect(),
        }
    }
}

fn find(name: &str) -> Result<&'static Target> {
    targets::find(name).with_context(|| format!("there is no target {name}; `ixc-fuzz list` shows them"))
}

fn main() -> Result<ExitCode> {
    let first = std::env::args().nth(1);
    if let Some(status) = helper::serve(first.as_deref()) {
        return Ok(status);
    }
    match Cli::parse().command {
        Command::List => {
            TARGETS.iter().for_each(|target| println!("{:16} {}", target.name, target.input));
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(args) => all(&args, runner::fuzz),
        Command::Replay(args) => all(&args, runner::replay),
        Command::One { target, file } => {
            child::run_one(find(&target)?, &fs::read(&file).with_context(|| file.display().to_string())?);
            Ok(ExitCode::SUCCESS)
        }
        Command::ReplayChild(args) => {
            child::replay(find(&args.target)?, &args.corpus, &args.current)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::FuzzChild { child, seed, time } => {
            let time = Duration::from_millis(time);
            child::fuzz(find(&child.target)?, &child.corpus, &child.current, seed, time)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs targets one after the other. The status is 1 if there are findings.
fn all(args: &RunArgs, run: impl Fn(&Target, &RunnerOptions) -> std::io::Result<Report>) -> Result<ExitCode> {
    let options = args.options();
    let mut reports = BTreeMap::new();
    for target in args.targets()? {
        reports.insert(target.name, run(target, &options)?);
    }
    print!("{}", runner::table(&reports));
    let findings: usize = reports.values().map(|report| report.findings.len()).sum();
    println!("seed {}, {findings} findings", options.seed);
    // A run without a case finds nothing, and must not look like a success.
    let idle: Vec<&str> = reports.iter().filter(|(_, report)| report.is_idle()).map(|(name, _)| *name).collect();
    ensure!(idle.is_empty(), "no case has run: {}; give more --seconds", idle.join(", "));
    Ok(if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
