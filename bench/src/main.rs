//! `ixc-bench` runs ixc and its rivals side by side on the same file, and prints their ratios.
//!
//! ```text
//! main ─▶ compare ─▶ for each model, threads, round, job and entrant:
//!                    process::Launcher ─▶ the entrant's own benchmark
//!                ┌────────────────────────────────────┘
//!                └─▶ rivals/*::read ─▶ statistics ─▶ report (JSON, table)
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`work`] | measured quantities and their units |
//! | [`process`] | runs of programs: output, time, peak memory, load by other processes |
//! | [`rivals`] | one file for each engine: its command lines and its output |
//! | [`compare`] | the command `compare`, and the order of measurements |
//! | [`statistics`] | medians, spreads, ratios |
//! | [`report`] | the table and the JSON |
//! | [`bandwidth`] | memory bandwidth of this machine |
//! | [`layer`] | measurement of one layer of experts |
//!
//! Invariant: compared entrants ran one directly after the other, on the same file, each in a
//! separate process.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bandwidth;
mod compare;
mod layer;
mod process;
mod report;
mod rivals;
mod statistics;
mod work;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Runs ixc and its rivals side by side on the same model file; prints medians, spreads and ratios.
#[derive(Debug, Parser)]
#[command(name = "ixc-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(Box<compare::Args>),
    Layer(layer::Args),
    Bandwidth(bandwidth::Args),
    /// Runs a program and writes its time and memory to a file; `compare --prefix` uses it inside
    /// the prefix.
    #[command(hide = true)]
    Clock {
        /// Seconds after which the program is ended.
        #[arg(long)]
        limit: Option<f64>,
        /// The file for the result.
        result: PathBuf,
        /// The program and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Prints the table of a JSON file that `compare` wrote.
    Table {
        /// JSON file that `compare` wrote.
        file: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Compare(args) => compare::run(*args),
        Command::Layer(args) => args.run(),
        Command::Bandwidth(args) => args.run(),
        Command::Clock { limit, result, command } => {
            let limit = limit.map(std::time::Duration::try_from_secs_f64).transpose()?;
            process::clock(&result, &command, limit)
        }
        Command::Table { file } => {
            print!("{}", report::Report::read(&file)?.table());
            Ok(())
        }
    }
}
