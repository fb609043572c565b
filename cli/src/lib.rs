//! Commands: one file each, with its options, help and output.
//!
//! Facts go to standard output, and everything else to standard error. Neither can control a
//! terminal ([`terminal`]). If a reader closes standard output early (`| head`), the command ends
//! silently.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod access;
mod answer;
mod batch;
mod bench;
mod cache;
mod compile;
mod completions;
mod converse;
mod divergence;
mod division;
mod doctor;
mod download;
mod drawing;
mod dump;
mod embed;
mod eval;
mod expert_files;
mod experts;
mod explain;
mod failure;
mod force;
mod grammar;
mod help;
mod hints;
mod inspect;
mod inspect_page;
mod inspect_plan;
mod interrupt;
mod invocation;
mod kernel;
mod library_error;
mod lines;
mod log;
mod logits;
mod man;
mod model_args;
mod model_name;
mod nodes;
mod op_times;
mod opt;
#[cfg(unix)]
mod out_of_memory;
mod output;
mod overrides;
mod passes;
mod perf;
mod plan;
mod plan_cache;
mod prefetch;
mod printable;
mod program;
mod quantise;
mod ranges;
mod ranks;
mod run;
mod sampling;
mod sandbox;
mod select;
mod serve;
mod served_models;
mod settings;
mod shift;
#[cfg(unix)]
mod signals;
mod simulate;
mod size;
mod speculation;
mod spelling;
mod stage_choice;
mod stages;
mod stats_line;
mod streaming;
mod suggestions;
mod template;
mod terminal;
mod tokenize;
mod tokens;
mod wrap;
mod writer;

use std::ffi::OsString;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use ixc_compile::build;
use ixc_quantise::mix::Mix;

use output::Colours;
use settings::arguments::ParseError;

#[cfg(unix)]
pub use out_of_memory::ExitIfExhausted;
pub use program::{run, run_connected, run_with};
pub use ranks::{Connect, Report};
pub use settings::error::ConfigError;
pub use settings::file::check_configuration;

/// Compiles model files to machine code for this CPU, and runs them.
#[derive(Debug, Parser)]
#[command(name = "ixc", version = build::version(), long_version = build::long_version(), propagate_version = true)]
#[command(arg = settings::arguments::config_argument())]
#[command(after_help = "EXAMPLES:
  ixc run -p \"The borrow checker\"          run the built-in demo model
  ixc run model.gguf -p \"Hello\" -n 64      run a model
  ixc doctor                               features and speed of this machine

`ixc COMMAND --help` shows examples of each command. Without MODEL, or with `demo`, the built-in \
demo model is used.

Each option has an environment variable: IXC_THREADS is --threads. ~/.config/ixc/config.toml sets \
options too. The command line precedes variables, and variables precede the file. `ixc doctor` \
shows the values in force. IXC_LOG takes log filters, such as debug.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 slower (bench --compare), 65 malformed or \
unsupported input, 66 missing file, 69 the CPU lacks a feature, 74 input or output failed, 130 \
ended by Ctrl-C.")]
pub(crate) struct Cli {
    /// Log options.
    #[command(flatten)]
    pub log: log::Log,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Args>),
    Serve(Box<serve::Args>),
    Compile(compile::Args),
    Embed(embed::Args),
    Logits(logits::Args),
    Eval(eval::Args),
    #[command(visible_alias = "quantize")]
    Quantise(quantise::Args),
    Inspect(inspect::Args),
    Dump(dump::Args),
    Opt(opt::Args),
    Explain(explain::Args),
    Tokenize(tokenize::EncodeArgs),
    Detokenize(tokenize::DecodeArgs),
    Bench(bench::Args),
    Plan(plan::Args),
    Cache(cache::Args),
    Kernel(kernel::Args),
    Simulate(simulate::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Commands of similar programs that users may type, with advice for `ixc`.
const OTHER_COMMANDS: [(&[&str], &str); 7] = [
    (&["server", "api"], "`ixc serve MODEL` serves a model over HTTP"),
    (
        &["pull", "download", "push"],
        "`hf download ORG/NAME --include \"*.gguf\"` fetches a model, and so does `ixc run -hf ORG/NAME:QUANT --download`",
    ),
    (
        &["chat", "cli", "generate"],
        "`ixc run MODEL` is a conversation on a terminal, `ixc run MODEL QUESTION` answers once",
    ),
    (
        &["list", "ls", "ps", "rm"],
        "ixc keeps no models: MODEL is the path of a file; `ixc inspect MODEL` shows its contents, and `ixc cache ls` lists compiled plans",
    ),
    (&["imatrix"], "`ixc eval MODEL --text FILE --imatrix OUTPUT` writes an importance matrix"),
    (&["perplexity", "ppl"], "`ixc eval MODEL --text FILE` measures the perplexity of a text"),
    (&["convert"], "`ixc quantise FOLDER F16` converts a folder of safetensors to a GGUF file"),
];

/// Returns the commands with their options, for help, completions and manual pages.
pub(crate) fn command() -> clap::Command {
    help::with_headings(Cli::command())
}

/// Returns when messages have colours, from arguments that are not parsed yet. The errors of clap's
/// parser have colours, too.
fn colours_of(arguments: &[OsString]) -> Colours {
    let mut words = arguments.iter().skip(1).map_while(|word| word.to_str().filter(|word| *word != "--"));
    let mut colours = Colours::Auto;
    while let Some(word) = words.next() {
        let (option, value) = word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
        if matches!(option, "--color" | "--colour") {
            let value = value.or_else(|| words.next()).unwrap_or_default();
            colours = Colours::from_str(value, true).unwrap_or_default();
        }
    }
    colours
}

/// Reads the command line, the environment variables of options, and the configuration file.
///
/// # Errors
/// If the command line, a variable or the file is wrong. Help and version texts are also returned
/// as errors.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Cli, ParseError> {
    let colours = colours_of(&arguments);
    output::set_colours(colours);
    let asks_short = arguments.iter().take_while(|word| *word != "--").any(|word| word == "-h");
    let command = if asks_short { help::short(command()) } else { command() };
    let mut command = command.color(colours.choice());
    if let Some(columns) = terminal::columns_variable() {
        command = command.term_width(columns.min(help::WIDEST));
    }
    let arguments = own_spelling(arguments)?;
    let (settings, missing) = model_name::with_missing(|| settings::arguments::add(&command, arguments));
    let settings = settings.map_err(|error| match error {
        ParseError::CommandLine(error) => ParseError::CommandLine(with_suggestions(error)),
        other => other,
    })?;
    // Variables and the file may set the colours, too.
    let colours = colours_of(&settings.arguments);
    output::set_colours(colours);
    let mut command = command.color(colours.choice());
    if !missing.is_empty() {
        let (found, _) = model_name::with_missing(|| command.try_get_matches_from_mut(&settings.arguments));
        if found.is_ok_and(|found| asks_download(&found)) {
            missing.iter().try_for_each(|name| download::fetch(name)).map_err(ParseError::Settings)?;
        }
    }
    // From here on, a model that is in no cache is an error.
    let matches = command.try_get_matches_from_mut(&settings.arguments);
    let cli = matches.and_then(|mut found| Cli::from_arg_matches_mut(&mut found).map_err(|e| e.format(&mut command)));
    let cli = cli.map_err(|error| settings.explain(with_suggestions(error)));
    settings::arguments::set_current(settings);
    Ok(cli?)
}

/// Returns whether the command may download its model.
fn asks_download(found: &clap::ArgMatches) -> bool {
    let asks = |found: &clap::ArgMatches| found.try_get_one("download").ok().flatten().is_some_and(|asks: &bool| *asks);
    asks(found) || found.subcommand().is_some_and(|(_, inner)| asks_download(inner))
}

/// Returns clap's error with better suggestions.
fn with_suggestions(mut error: clap::Error) -> clap::Error {
    if let (Some(ContextValue::String(typed)), Some(ContextValue::String(known))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::SuggestedArg))
    {
        let [typed, known] = [typed, known].map(|option| option.trim_start_matches('-').to_owned());
        let typed = typed.split('=').next().unwrap_or_default();
        if !suggestions::is_near(typed, &known) {
            error.remove(ContextKind::SuggestedArg);
            // Without this, the usage line would name the suggested option.
            error.remove(ContextKind::Usage);
        }
    }
    // Users of llama-quantize may type `MODEL OUTPUT MIX`.
    if let (ErrorKind::UnknownArgument, Some(ContextValue::String(typed))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
        && Mix::find(typed).is_some()
    {
        let advice = format!("-o names the output: `ixc quantise MODEL {typed} -o OUTPUT`");
        return Cli::command().error(ErrorKind::UnknownArgument, format!("unexpected argument '{typed}': {advice}"));
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let word = word.clone();
    // The usage line of a subcommand's error has the subcommand's name before its options.
    let is_first = matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(usage)) if usage.to_string().contains("ixc [OPTIONS]"));
    if let Some((_, advice)) = OTHER_COMMANDS.iter().find(|(words, _)| is_first && words.contains(&&*word)) {
        return Cli::command().error(ErrorKind::InvalidSubcommand, format!("there is no command `{word}`: {advice}"));
    }
    // Suggest only commands with the same first letter: typing errors seldom change it, and
    // clap finds `kernel` similar to `serve`.
    if let Some(ContextValue::Strings(alike)) = error.get(ContextKind::SuggestedSubcommand) {
        let first = word.chars().next();
        let alike: Vec<String> = alike.iter().filter(|name| name.chars().next() == first).cloned().collect();
        // clap prints an empty tip for an empty list.
        match alike.is_empty() {
            true => error.remove(ContextKind::SuggestedSubcommand),
            false => error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(alike)),
        };
    }
    error
}

/// Replaces llama.cpp's spellings in the arguments by those of this program.
fn own_spelling(arguments: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    let unknown = |problem| Cli::command().error(ErrorKind::UnknownArgument, problem);
    let arguments = spelling::of_llama(arguments).map_err(unknown)?;
    model_name::without_hub_options(arguments).map_err(unknown)
}

/// Returns a command's definition, and its arguments in this process. The arguments include values
/// of variables and of the configuration file. Returns `None` if the process runs another command.
pub(crate) fn matches_of(name: &str) -> Option<(clap::Command, clap::ArgMatches)> {
    let command = Cli::command();
    let arguments = settings::arguments::current()?.arguments;
    let (found, matches) = command.clone().try_get_matches_from(arguments).ok()?.remove_subcommand()?;
    Some((command.find_subcommand(name).filter(|_| found == name)?.clone(), matches))
}

/// Prints clap's error, help or version text, and ends the program.
pub(crate) fn exit(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    let has_control = || {
        let mut arguments = invocation::arguments().into_iter();
        arguments.any(|argument| argument.to_string_lossy().contains(output::is_terminal_control))
    };
    let is_wide = || {
        let width = terminal::error_width();
        width.is_some_and(|width| text.lines().any(|line| line.chars().count() > width))
    };
    if !error.use_stderr() || !(has_control() || is_wide()) {
        error.exit();
    }
    // clap repeats the arguments unescaped, and does not wrap errors. Escaping and wrapping remove
    // clap's colours, too.
    output::print_stderr(text.trim_end());
    std::process::exit(error.exit_code());
}

/// Invalid input other than a model: a list of tokens, a prompt.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadInput(pub String);

/// Command line with options that contradict each other.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub String);

impl Command {
    /// Runs the command; its output goes to `out`.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        match self {
            Command::Run(args) => args.run(out),
            Command::Serve(args) => args.run(out),
            Command::Compile(args) => args.run(out),
            Command::Embed(args) => args.run(out),
            Command::Logits(args) => args.run(),
            Command::Eval(args) => args.run(out),
            Command::Quantise(args) => args.run(out),
            Command::Inspect(args) => args.run(out),
            Command::Dump(args) => args.run(out),
            Command::Opt(args) => args.run(out),
            Command::Explain(args) => args.run(out),
            Command::Tokenize(args) => args.run(out),
            Command::Detokenize(args) => args.run(out),
            Command::Bench(args) => args.run(out),
            Command::Plan(args) => args.run(out),
            Command::Cache(args) => args.run(out),
            Command::Kernel(args) => args.run(out),
            Command::Simulate(args) => args.run(out),
            Command::Doctor(args) => args.run(out),
            Command::Completions(args) => args.run(out),
            Command::Man(args) => args.run(out),
        }
    }
}
