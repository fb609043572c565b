//! `ixc run --batch`: answers the requests in a file, many at once, and writes the answers to a
//! file.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ixc_files::{STANDARD, open_regular};
use ixc_generate::loaded_model::LoadedModel;
use ixc_generate::speculate::Speculation;
use ixc_serve::batch::{self, Answers, Defaults, Lines, Progress};
use ixc_serve::serving::{self, Host};
use ixc_text::template::ChatTemplate;

use super::expert_files::ExpertRecord;
use super::force::{Force, reads};
use super::interrupt::{self, Interrupted};
use super::invocation::helper_program;
use super::output::{Line, count_text, note};
use super::ranks;
use super::shift::ShiftChoice;

/// Size in bytes of each read from the file of requests.
const READ_BYTES: usize = 1 << 16;

/// File of requests to answer, and file for the answers.
#[derive(Debug, clap::Args)]
pub struct BatchChoice {
    /// Answer the requests of this file; `-` reads standard input. Each line is a JSON object with
    /// a prompt or messages, and the fields of a request to `ixc serve`. Lines of OpenAI's batch
    /// files are accepted too.
    #[arg(long, value_name = "FILE", requires = "output",
          conflicts_with_all = ["words", "prompt", "file", "save_state", "load_state", "trace", "stats",
                                "grammar", "grammar_file", "json_schema", "json_schema_file"])]
    batch: Option<PathBuf>,
    /// Write the answers of --batch to this file, one per line. Requests whose answers are in the
    /// file are skipped.
    #[arg(short, long, value_name = "FILE", requires = "batch")]
    output: Option<PathBuf>,
    /// Number of --batch requests computed together, each with a context of --ctx.
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 4, requires = "batch",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
}

/// Model, template and settings that a batch needs in addition to its options.
pub struct BatchContext<'a> {
    pub model: LoadedModel,
    pub speculation: Option<Speculation>,
    pub record: ExpertRecord,
    pub template: Option<ChatTemplate>,
    pub shift: ShiftChoice,
    pub defaults: Defaults,
    pub force: Force,
    pub begin: Instant,
    /// Input files of other options, which the output must not overwrite.
    pub inputs: Vec<&'a Path>,
}

impl BatchChoice {
    /// Returns the file of requests, if it is given.
    pub fn file(&self) -> Option<&Path> {
        self.batch.as_deref()
    }

    /// Returns the number of sequences that are computed together; 1 without `--batch`.
    pub fn sequences(&self) -> u32 {
        if self.batch.is_some() { self.parallel } else { 1 }
    }

    /// Opens the file of requests and the file for answers. Call it before the model is loaded, so
    /// that a wrong path fails early. Returns `None` without `--batch`.
    pub fn open(&self, force: Force, inputs: &[&Path]) -> anyhow::Result<Option<Files>> {
        let (Some(from), Some(to)) = (&self.batch, &self.output) else { return Ok(None) };
        if ranks::is_follower() {
            return Ok(None);
        }
        let failed = ixc_error::Error::io(from, "read");
        let input: Box<dyn Read> = match from.as_os_str() == STANDARD {
            true => Box::new(std::io::stdin()),
            false => Box::new(open_regular(from).map_err(failed)?),
        };
        let output = force.open(to, &batch::KIND, inputs)?;
        Ok(Some(Files { from: from.clone(), input, output }))
    }
}

/// Batch whose file of requests and file for answers are open.
pub struct Files {
    from: PathBuf,
    input: Box<dyn Read>,
    output: ixc_files::Output,
}

impl Files {
    /// Answers the requests of the batch file.
    pub fn answer(mut self, around: BatchContext<'_>) -> anyhow::Result<()> {
        let BatchContext { model, speculation, mut record, template, shift, defaults, force, begin, inputs } = around;
        record.add_inputs(model.engine(), model.files().iter().map(PathBuf::as_path))?;
        reads(&mut self.output, model.files().iter().map(PathBuf::as_path).chain(inputs))?;
        let mut answers = Answers::open(&self.output.into_place().map_err(ixc_error::Error::from)?, force.is_set())?;
        let renderer = helper_program().map_err(ixc_error::Error::io(Path::new("/proc/self/exe"), "find"))?;
        let options = serving::ServingOptions {
            name: model.facts().architecture.clone(),
            queue: usize::MAX,
            template,
            compiler: Some(renderer.clone()),
            renderer: Some(renderer),
            shift: shift.shift(),
            ..serving::ServingOptions::default()
        };
        let host = Host::new(model, speculation, options)?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        interrupt::on_next(move || {
            let _ = stop.send(());
        });
        let started = Instant::now();
        let mut line = Line::new(begin);
        let tell = |progress: Progress| line.show(format_args!("{}", progress_text(progress, started)));
        let lines = Lines::new(self.from, BufReader::with_capacity(READ_BYTES, self.input));
        let progress = batch::run(host, lines, &mut answers, &defaults, stopped, tell);
        line.clear();
        let (progress, used) = progress?;
        used.map_or(Ok(()), |used| record.write(|| used))?;
        note!("ixc: {}", progress_text(progress, started));
        match progress {
            Progress { stopped: true, .. } => Err(Interrupted.into()),
            Progress { failed: 0, .. } => Ok(()),
            Progress { failed, answered, .. } => {
                let of = count_text(answered, "request");
                anyhow::bail!("{failed} of {of} failed; the output file has their errors")
            }
        }
    }
}

/// Returns the progress line of a batch.
fn progress_text(progress: Progress, started: Instant) -> String {
    let Progress { answered, failed, skipped, generated_tokens, .. } = progress;
    let rate = generated_tokens as f64 / started.elapsed().as_secs_f64().max(1e-3);
    let failed = if failed > 0 { format!(", {failed} of them with an error") } else { String::new() };
    let skipped = if skipped > 0 { format!(", {skipped} answered before") } else { String::new() };
    format!(
        "{} answered{failed}{skipped}, {}, {rate:.1} tokens/s",
        count_text(answered, "request"),
        count_text(generated_tokens, "token")
    )
}
