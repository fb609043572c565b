//! `ixc run`: a model, a prompt, and text as it is made.

use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ixc::forecast::Remembered;
use ixc::frontend::tokenizer::DecodeOptions;
use ixc::runtime::stream::store::Store;
use ixc::runtime::stream::store::stats::Stats;
use ixc::runtime::trace::Recorder;
use ixc::session::{End, Generation, Progress, Request, Session, SessionOptions};

use super::choose::{ModelChoice, StreamingChoice, TargetChoice};
use super::interrupt::{Interrupted, Writing};
use super::output::{Bytes, Printable, note};
use super::sampling::SamplingArgs;
use super::{BadInput, streaming, tokenize};

/// Tokens to write where nothing says how many and no token ends the text.
const DEFAULT_TOKENS: usize = 256;

/// Runs a model: text comes as it is made.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc run -p \"The borrow checker\"               the built-in demo model
  ixc run model.gguf -p \"Once upon a time\" -n 64 --temp 0 --stats
  ixc run model.gguf --chat                      a conversation; Ctrl-D ends it
  cat question.txt | ixc run model.gguf --chat   one answer
  ixc run plan.ixp -f prompt.txt -t 8
  ixc run large.gguf -p Hello --memory 6GiB      experts are read as needed
  ixc run model.gguf -p Hello --trace out.json   a timeline, for ui.perfetto.dev
  ixc run --target amx --emulate -p Hello -n 4   code for another CPU

The prompt is -p, -f or standard input; without any of them, on a terminal, a conversation begins. \
One newline at the end of a file or of standard input is no part of the prompt. \
Names of special tokens in the prompt are those tokens; with --chat they are text like any other. \
Text goes to standard output, everything else to standard error. Ctrl-C stops the text; the exit \
status is 130 then. Where no text is being written it ends the program.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// The prompt.
    #[arg(short, long, conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the prompt from a file, `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Use the model's chat template: the prompt is what the user says.
    #[arg(long, visible_alias = "conversation", alias = "cnv")]
    chat: bool,
    /// What the system message says; with --chat.
    #[arg(long, visible_alias = "system-prompt", alias = "sys", value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Most tokens to write; -1: until the model ends or the context is full [default: 256; with --chat -1].
    #[arg(short = 'n', long = "tokens", aliases = ["n-predict", "predict"], value_name = "N", allow_negative_numbers = true)]
    count: Option<i64>,
    /// Threads [default: one for each core].
    #[arg(short, long, value_name = "N", env = "IXC_THREADS", hide_env_values = true)]
    threads: Option<usize>,
    /// Positions that the KV cache has room for [default: the model's, at most 4096].
    #[arg(short = 'c', long = "ctx", alias = "ctx-size", value_name = "N", env = "IXC_CTX", hide_env_values = true)]
    context: Option<usize>,
    #[command(flatten)]
    target: TargetChoice,
    /// Run the generated code in the emulator: any target on any machine, about a thousand times slower.
    #[arg(long)]
    emulate: bool,
    /// Read weights as they lie in the model file, even where the target has faster kernels for packed ones.
    #[arg(long)]
    no_pack: bool,
    /// Do not read a plan's weights through to compare their checksums.
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    streaming: StreamingChoice,
    /// Say on standard error where the time went.
    #[arg(long)]
    stats: bool,
    /// Write what each thread and the drive did when, and what lay in memory: a file for https://ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        self.sampling.check()?;
        let begin = Instant::now();
        let trace = match &self.trace {
            Some(path) => {
                // Before the run, which would be lost.
                Recorder::check_place(path).map_err(ixc::Error::from)?;
                Some(Arc::new(Recorder::new()))
            }
            None => None,
        };
        let options = SessionOptions {
            model_file: self.model.file().map(Path::to_owned),
            threads: self.threads,
            context: self.context,
            target: self.target.target(),
            stats: self.stats,
            emulate: self.emulate,
            skip_weight_check: self.no_check,
            pack: self.no_pack.then_some(false),
            trace: trace.clone(),
            ..self.streaming.options()?
        };
        let result = self.converse_or_write(&options, begin, out);
        if let (Some(path), Some(trace)) = (&self.trace, &trace) {
            // Of a run that failed, too: it may show why.
            save(path, trace).or_else(|error| if result.is_err() { Ok(()) } else { Err(error) })?;
        }
        result
    }

    fn converse_or_write(&self, options: &SessionOptions, begin: Instant, out: &mut dyn Write) -> anyhow::Result<()> {
        let session = Session::open(self.model.path(), options)?;
        let mut writer = Writer {
            own_rate: session.drive().filter(|_| self.stats).and_then(|drive| drive.rate_now(streaming::BASELINE)),
            session,
            args: self,
            out,
            seed: self.sampling.seed(),
        };
        if self.stats {
            let loaded = begin.elapsed().as_secs_f64();
            note!(
                "load      {loaded:.2} s, {} threads, target {}{}",
                writer.session.threads(),
                writer.session.target().name(),
                if self.emulate { ", emulated" } else { "" }
            );
        }
        let prompt = match (&self.prompt, &self.file) {
            (Some(prompt), _) => Some(prompt.clone()),
            (None, Some(file)) => Some(read_prompt(file)?),
            (None, None) if io::stdin().is_terminal() => None,
            (None, None) => Some(read_prompt("-".as_ref())?),
        };
        match prompt {
            Some(prompt) if self.chat => {
                if prompt.is_empty() {
                    return Err(no_prompt());
                }
                writer.session.chat(self.system.as_deref());
                writer.session.say(&prompt);
                writer.answer()
            }
            Some(prompt) => {
                let tokens = writer.session.encode_prompt(&prompt)?;
                if tokens.is_empty() {
                    return Err(no_prompt());
                }
                let ends = writer.write(&tokens, self.limit(Some(DEFAULT_TOKENS)))?.end;
                if ends == End::Stopped { Err(Interrupted.into()) } else { Ok(()) }
            }
            None => writer.converse(),
        }
    }
}

impl Args {
    /// How many tokens to write, where nothing else is said.
    fn limit(&self, default: Option<usize>) -> Option<usize> {
        match self.count {
            None => default,
            // A negative number has no limit.
            Some(count) => usize::try_from(count).ok(),
        }
    }
}

/// Writes a trace, and says where it is incomplete.
fn save(path: &Path, trace: &Recorder) -> anyhow::Result<()> {
    let dropped = trace.save(path).map_err(ixc::Error::from)?;
    if dropped > 0 {
        note!("ixc: {dropped} events had no place in the trace, which ends early; trace fewer tokens");
    }
    Ok(())
}

/// A prompt from a file, without the newline that editors and `echo` end it with: a model would go on from the next line.
fn read_prompt(path: &Path) -> anyhow::Result<String> {
    let mut prompt = tokenize::read(path)?;
    if prompt.ends_with('\n') {
        prompt.pop();
    }
    Ok(prompt)
}

fn no_prompt() -> anyhow::Error {
    BadInput("the prompt is empty; give one with -p, -f or standard input".into()).into()
}

/// A session, and where its text goes.
struct Writer<'a> {
    session: Session,
    args: &'a Args,
    out: &'a mut dyn Write,
    seed: u64,
    /// Bytes per second that the drive of streamed experts gave by itself before.
    own_rate: Option<f64>,
}

impl Writer<'_> {
    /// A conversation with whoever sits there.
    fn converse(&mut self) -> anyhow::Result<()> {
        self.session.chat(self.args.system.as_deref());
        note!("Ctrl-C stops an answer, Ctrl-D ends the conversation.");
        loop {
            let _ = write!(io::stderr(), "> ");
            let mut line = String::new();
            if io::stdin().lock().read_line(&mut line).map_err(ixc::Error::io("-".as_ref(), "read"))? == 0 {
                note!("");
                return Ok(());
            }
            if line.trim().is_empty() {
                continue;
            }
            self.session.say(line.trim_end_matches('\n'));
            match self.answer() {
                Err(error) if error.is::<Interrupted>() => {}
                other => other?,
            }
        }
    }

    /// The model's turn.
    fn answer(&mut self) -> anyhow::Result<()> {
        let tokens = self.session.render_chat()?;
        let generation = self.write(&tokens, self.args.limit(None))?;
        self.session.answered(&generation.tokens)?;
        if generation.end == End::Stopped { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Text after these tokens.
    fn write(&mut self, tokens: &[u32], limit: Option<usize>) -> anyhow::Result<Generation> {
        let before = self.session.stream().filter(|_| self.args.stats).map(Store::stats);
        let tokenizer = self.session.tokenizer()?.clone();
        let mut stream = tokenizer.stream(DecodeOptions { show_special: false, at_start: false });
        let mut last = '\n';
        let mut show = |out: &mut dyn Write, text: &str| -> io::Result<()> {
            last = text.chars().next_back().unwrap_or(last);
            out.write_all(text.as_bytes())?;
            out.flush()
        };
        let out = &mut *self.out;
        let request = Request { tokens, limit, sampling: self.args.sampling.settings(self.seed) };
        let (begin, mut writing) = (Instant::now(), None);
        let generation = self.session.generate(&request, |progress| -> anyhow::Result<ControlFlow<()>> {
            let Progress::Token(id) = progress else { return Ok(ControlFlow::Continue(())) };
            show(out, &stream.push(id).map_err(ixc::Error::from)?)?;
            let asked = writing.get_or_insert_with(|| Writing::begin(begin.elapsed())).asked();
            Ok(if asked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        drop(writing);
        show(out, &stream.finish())?;
        if last != '\n' {
            writeln!(out)?;
            out.flush()?;
        }
        if generation.end == End::Context {
            let context = self.session.context();
            note!("ixc: the context of {context} tokens is full; --ctx makes it larger");
        }
        if self.args.stats {
            self.stats(&generation, before.as_ref());
        }
        Ok(generation)
    }

    /// Says what this text took; `before` is what the store of streamed experts had counted then.
    fn stats(&mut self, generation: &Generation, before: Option<&Stats>) {
        for (what, phase) in [("prefill", &generation.prefill), ("decode", &generation.decode)] {
            let (tokens, seconds) = (phase.tokens, phase.seconds);
            let rate = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
            note!("{what:<9} {tokens} tokens in {seconds:.2} s, {rate:.1} tokens/s");
        }
        let stats = self.session.take_stats();
        let total = stats.wall.as_secs_f64() * stats.threads as f64;
        // Labels are an op and the weight of one layer; over all layers, the op is what tells.
        let mut ops: Vec<(&str, f64)> = Vec::new();
        for task in &stats.tasks {
            let op = task.label.split_whitespace().next().unwrap_or_default();
            match ops.iter_mut().find(|(name, _)| *name == op) {
                Some((_, time)) => *time += task.time.as_secs_f64(),
                None => ops.push((op, task.time.as_secs_f64())),
            }
        }
        ops.push(("waiting", stats.waiting.as_secs_f64()));
        ops.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (op, time) in ops.iter().filter(|(_, time)| time * 100.0 >= total) {
            note!("time      {:5.1} % {}", 100.0 * time / total, Printable(op));
        }
        if let (Some(store), Some(before)) = (self.session.stream(), before) {
            let did = streaming::since(store.stats(), before);
            streaming::note(store, &did, &generation.decode, stats.threads);
            if let Some(report) = self.session.predictions() {
                streaming::predictions(&report);
            }
            if let Some(drive) = self.session.drive() {
                let after = self.own_rate.and_then(|_| drive.rate_now(streaming::BASELINE));
                let own: Vec<f64> = self.own_rate.into_iter().chain(after).collect();
                streaming::note_drive(drive, &did.drive, &own);
                self.own_rate = after;
                let observed = streaming::Observed {
                    phase: generation.decode,
                    prompt: None,
                    defers: self.session.defers(),
                    own: (!own.is_empty()).then(|| own.iter().sum::<f64>() / own.len() as f64),
                };
                let path = self.args.model.path();
                let known = path.and_then(|path| Remembered::of(path, self.session.threads(), self.session.target()));
                for line in streaming::compare(&observed, store, known.as_ref()) {
                    note!("forecast  {line}");
                }
            }
        }
        if self.args.streaming.defer() > 0 {
            let defer = self.args.streaming.defer();
            note!(
                "deferral  {defer} experts of each token a layer late: this output is approximate; `ixc bench` says how much"
            );
        }
        if let Some(advised) = self.session.advised() {
            streaming::advised(&advised);
        }
        note!("seed      {}", self.seed);
        if let Some(peak) = ixc::machine::system::peak_memory() {
            note!("memory    {} at the peak, mapped weights included", Bytes(peak));
        }
    }
}
