//! Log options: `--verbose`, `--quiet`, `--log-file` and `IXC_LOG`.
//!
//! ```text
//! ixc run -p Hello -v                                what is done (info); -vv and -vvv print more
//! IXC_LOG=ixc_runtime=debug,warn ixc run -p Hello    a level for each crate, and one for others
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use super::output::Colours;
use super::{Usage, output};

/// Environment variable with a filter.
const VARIABLE: &str = "IXC_LOG";

/// File of `--log-file`.
static LOG_FILE: OnceLock<PathBuf> = OnceLock::new();

/// Amount of logging, and its destination.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Messages")]
pub struct Log {
    /// Log steps to standard error; -vv logs details, -vvv everything. IXC_LOG takes filters.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Print only the output and errors.
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Colours in messages. NO_COLOR turns them off too.
    #[arg(
        long,
        global = true,
        alias = "colour",
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_default_value = true
    )]
    color: Colours,
    /// Append log lines to this file instead of standard error.
    #[arg(long, global = true, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

impl Log {
    /// Applies the options to the whole program.
    ///
    /// # Errors
    /// If IXC_LOG is not a valid filter, or the file cannot be written or is not a log.
    pub fn install(&self) -> anyhow::Result<()> {
        output::set_loudness(self.quiet, self.verbose);
        output::set_colours(self.color);
        let filter = self.filter()?;
        // Log lines have dates unless only warnings and errors are logged.
        let level = Layer::<Registry>::max_level_hint(&filter);
        let dated = self.log_file.is_some() || level.is_none_or(|level| level > LevelFilter::WARN);
        let colours = self.log_file.is_none() && output::colours();
        let writer = match &self.log_file {
            Some(path) => {
                let file = open(path)?;
                LOG_FILE.get_or_init(|| path.clone());
                BoxMakeWriter::new(Mutex::new(file))
            }
            None => BoxMakeWriter::new(io::stderr),
        };
        let log = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours);
        // If standard error is closed, a message about a failed write would panic.
        let log = log.log_internal_errors(false);
        let log = if dated { log.boxed() } else { log.without_time().boxed() };
        Registry::default().with(log).with(filter).init();
        Ok(())
    }

    fn filter(&self) -> anyhow::Result<Targets> {
        let level = match self.verbose {
            0 if self.quiet => LevelFilter::ERROR,
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        let said = self.quiet || self.verbose > 0;
        let Some(variable) = std::env::var_os(VARIABLE).filter(|filter| !said && !filter.is_empty()) else {
            return Ok(Targets::new().with_default(level));
        };
        let shown = variable.to_string_lossy();
        variable.to_str().and_then(targets).ok_or_else(|| {
            let expected =
                "expected a level (error, warn, info, debug, trace) or filters such as ixc_runtime=debug,warn";
            Usage(format!("{VARIABLE} is {shown:?}, which is not a filter; {expected}")).into()
        })
    }
}

/// Parses levels and `target=level`, between commas. Returns `None` for a target that no module can
/// have, because the parser of [`Targets`] would accept it, and it would match nothing.
fn targets(filter: &str) -> Option<Targets> {
    let parts: Vec<&str> = filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let may_be_target = |target: &str| target.chars().all(|c| c.is_ascii_alphanumeric() || "_-:".contains(c));
    let is_known = |part: &&str| match part.split_once('=') {
        Some((target, level)) => may_be_target(target) && !level.is_empty(),
        None => may_be_target(part),
    };
    if !parts.iter().all(is_known) {
        return None;
    }
    parts.join(",").parse().ok()
}

/// Opens the destination of other logs, such as the request log: the file of `--log-file`, or
/// standard error; `None` with `--quiet`.
///
/// # Errors
/// When the file cannot be written or is not a log.
pub fn writer() -> anyhow::Result<Option<Box<dyn Write + Send>>> {
    if output::is_quiet() {
        return Ok(None);
    }
    Ok(Some(match LOG_FILE.get() {
        Some(path) => Box::new(open(path)?),
        None => Box::new(io::stderr()),
    }))
}

/// Opens a log to append to it. An existing file must be a log or empty, because any other file is
/// the user's data.
fn open(path: &Path) -> anyhow::Result<File> {
    if path.as_os_str() == ixc_files::STANDARD {
        return Err(Usage(
            "a log cannot be written to standard output, which has the results of the command; name a file".to_owned(),
        )
        .into());
    }
    let failed = |source| ixc_error::Error::io(path, "write the log to")(source);
    let mut file = ixc_files::open_append(path).map_err(failed)?;
    let mut start = Vec::new();
    // Lines of a log begin with a time; in JSON objects the time has a name.
    let (time, name) = ("2026-11-22T13:14:15.", "{\"time\":\"");
    (&mut file).take((name.len() + time.len()) as u64).read_to_end(&mut start).map_err(failed)?;
    let shape = |byte: u8| if byte.is_ascii_digit() { b'0' } else { byte };
    let begins = start.strip_prefix(name.as_bytes()).unwrap_or(&start).iter().copied().map(shape);
    let is_log = begins.take(time.len()).eq(time.bytes().map(shape));
    if !start.is_empty() && !is_log {
        return Err(failed(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file exists and is not a log of ixc; name another file",
        ))
        .into());
    }
    Ok(file)
}
