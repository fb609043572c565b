//! The commands: one file each, with its flags, its help and what it prints.
//!
//! Facts go to standard output, everything else to standard error. A reader that closes standard output early (`| head`) ends
//! the command in silence.

mod bench;
mod choose;
mod compile;
mod doctor;
mod dump;
mod experts;
mod inspect;
mod inspect_plan;
mod interrupt;
mod kernel;
mod logits;
mod opt;
mod output;
mod plan;
mod prefetch;
mod run;
mod sampling;
mod simulate;
mod size;
mod stages;
mod streaming;
mod tokenize;
mod tokens;

use std::io::{self, Write};

use clap::{Parser, Subcommand};

/// Compiles model files to machine code for exactly this model and this CPU, and runs them.
#[derive(Debug, Parser)]
#[command(name = "ixc", version, about, propagate_version = true, disable_help_subcommand = true)]
#[command(after_help = "EXAMPLES:
  ixc run -p \"The borrow checker\"          run the built-in demo model
  ixc run model.gguf -p \"Hello\" -n 64      run a model
  ixc doctor                               what this machine can do

`ixc COMMAND --help` has examples of each. IXC_LOG=debug shows what it does.
Exit status: 0 done, 1 failed, 2 wrong usage, 65 malformed or unsupported input, 66 missing file,
69 the CPU lacks a feature, 74 input or output failed, 130 ended by Ctrl-C.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(run::Args),
    Compile(compile::Args),
    Logits(logits::Args),
    Inspect(inspect::Args),
    Dump(dump::Args),
    Opt(opt::Args),
    Tokenize(tokenize::EncodeArgs),
    Detokenize(tokenize::DecodeArgs),
    Bench(bench::Args),
    Plan(plan::Args),
    Kernel(kernel::Args),
    Simulate(simulate::Args),
    Doctor(doctor::Args),
}

/// Input other than a model that makes no sense: a list of tokens, a prompt.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

impl Command {
    /// Runs it; what it prints goes to `out`.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        match self {
            Command::Run(args) => args.run(out),
            Command::Compile(args) => args.run(out),
            Command::Logits(args) => args.run(),
            Command::Inspect(args) => args.run(out),
            Command::Dump(args) => args.run(out),
            Command::Opt(args) => args.run(out),
            Command::Tokenize(args) => args.run(out),
            Command::Detokenize(args) => args.run(out),
            Command::Bench(args) => args.run(out),
            Command::Plan(args) => args.run(out),
            Command::Kernel(args) => args.run(out),
            Command::Simulate(args) => args.run(out),
            Command::Doctor(args) => args.run(out),
        }
    }
}

/// The exit status of a failure, and what to say about it: nothing where the reader of standard output went away.
pub fn failure(failure: &anyhow::Error) -> (u8, Option<String>) {
    for cause in failure.chain() {
        if let Some(error) = cause.downcast_ref::<ixc::Error>() {
            return (error.exit_status(), Some(output::describe(failure)));
        }
        if cause.is::<interrupt::Interrupted>() {
            return (ixc::error::INTERRUPTED, None);
        }
        if cause.is::<BadInput>() {
            return (ixc::error::DATA, Some(output::describe(failure)));
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            // Only standard output's errors come without a path around them.
            return match error.kind() {
                io::ErrorKind::BrokenPipe => (0, None),
                _ => (ixc::error::IO, Some(format!("error: cannot write standard output: {error}"))),
            };
        }
    }
    (1, Some(output::describe(failure)))
}
