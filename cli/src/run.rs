//! `ixc run`: generates text for a prompt with a model.

use std::cell::OnceCell;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ixc_files::Output;
use ixc_generate::chat::{self, Chat};
use ixc_generate::expert_use::ExpertUse;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_generate::session::Session;
use ixc_grammar::Matcher;
use ixc_ir::plan::State;
use ixc_runtime::engine;
use ixc_runtime::progress::ProgressCounter;
use ixc_runtime::saved;
use ixc_runtime::trace::{self, Recorder};
use ixc_serve::batch::Defaults;
use ixc_text::template::ChatTemplate;

use super::batch::{BatchChoice, BatchContext};
use super::expert_files::{ExpertFiles, ExpertRecord};
use super::force::{Force, reads};
use super::grammar::GrammarChoice;
use super::inspect_plan::cache_formats;
use super::interrupt::Interrupted;
use super::invocation::helper_program;
use super::model_args::{ModelChoice, RunChoice, backend};
use super::output::{Bytes, Printable, Watch, count_text, note};
use super::sampling::SamplingArgs;
use super::shift::ShiftChoice;
use super::speculation::SpeculationChoice;
use super::stats_line::stat;
use super::template::TemplateChoice;
use super::writer::{StatsFormat, TextParams, Writer};
use super::{BadInput, ranks, tokenize};

/// Tokens to generate if no count is given and no token ends the text.
const DEFAULT_TOKENS: usize = 256;

/// Runs a model and prints text as it is generated.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc run -p \"What is a trait?\"                  the built-in demo model
  ixc run model.gguf \"Why is the sky blue?\"      one answer
  ixc run model.gguf                             a conversation (/help in it)
  ixc run model.gguf --raw -p \"Once upon a time\" -n 64 --temp 0 --stats
  ixc run base.gguf --chat --chat-template chatml
  cat question.txt | ixc run model.gguf
  ixc run plan.ixp -f prompt.txt -t 8
  ixc run large.gguf -p Hello --memory 6GiB      streams experts from the drive
  ixc run large.gguf --chat --expert-stats hot.json --pin-experts hot.json
  ixc run model.gguf -p Hello --trace out.json   a timeline, for ui.perfetto.dev
  ixc run large.gguf -f code.rs --spec ngram     speculative decoding
  ixc run -p \"A user as JSON: \" -j '{\"type\": \"object\"}'
  ixc run --target amx --emulate -p Hello -n 4   code for another CPU, emulated
  ixc run model.gguf --raw -f book.txt -n 1 --save-state book.ixs
  ixc run model.gguf --load-state book.ixs -p \"In short,\"
  ixc run model.gguf --batch prompts.jsonl -o answers.jsonl

The prompt is PROMPT, -p, -f or standard input. Without any of them, on a terminal, a conversation \
begins. A model with a chat template answers the prompt. --raw continues it as text, and so do \
models without a template and --load-state. A newline at the end of a file or of standard input is \
not part of the prompt. Names of special tokens are plain text in a message; in a text that is \
continued they are tokens. Text goes to standard output, everything else to standard error. Ctrl-C \
stops the text with exit status 130.

Each line of a --batch file is one request, such as {\"prompt\": \"Hi\", \"max_tokens\": 8}. The \
options of this command are its defaults. Answers are written as they finish, each with the number \
of its line. After an interruption, the same command continues with the unanswered lines. The exit \
status is 1 if any answer is an error.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// Prompt, same as -p.
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "file"])]
    words: Option<String>,
    /// Prompt [default: standard input; on a terminal, a conversation].
    #[arg(short, long, conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the prompt from a file; `-` reads standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Use the chat template: the prompt is the user's message. It is the default for a model with
    /// a template, except with --load-state.
    #[arg(long, visible_alias = "conversation", alias = "cnv")]
    chat: bool,
    /// Continue the prompt as text, without a chat template.
    #[arg(long, visible_aliases = ["no-chat", "no-conversation"], alias = "no-cnv", conflicts_with_all = ["chat", "chat_template"],
          overrides_with = "raw")]
    raw: bool,
    /// Text of the system message; implies --chat.
    #[arg(long, visible_alias = "system-prompt", alias = "sys", value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    #[command(flatten)]
    template: TemplateChoice,
    /// Maximum number of tokens to generate, or -1 for no limit but the context [default: -1 for an
    /// answer, 256 for --raw].
    #[arg(short = 'n', long = "tokens", aliases = ["n-predict", "predict"], value_name = "N", allow_negative_numbers = true)]
    count: Option<i64>,
    #[command(flatten)]
    how: RunChoice,
    /// Run generated code in the emulator, which runs any target on any machine, about 1,000 times
    /// slower.
    #[arg(long)]
    emulate: bool,
    /// Print statistics to standard error: time per op and kernel, memory and rates. With json,
    /// they are one line of JSON for each text.
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    stats: Option<StatsFormat>,
    // The text is help, not Markdown.
    #[allow(rustdoc::bare_urls)]
    /// Write a timeline of threads, drive and memory, for https://ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    experts: ExpertFiles,
    #[command(flatten)]
    shift: ShiftChoice,
    /// Save the state at the end of the text. A run with --load-state continues from it and
    /// recomputes nothing.
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,
    /// Continue from a state that --save-state wrote. The prompt is appended and may be empty. A
    /// conversation reuses the beginning that it shares with the saved one.
    #[arg(long, value_name = "FILE")]
    load_state: Option<PathBuf>,
    #[command(flatten)]
    batch: BatchChoice,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    grammar: GrammarChoice,
    #[command(flatten)]
    speculation: SpeculationChoice,
}

/// Files that a session writes at its end: its state, and the record of its experts.
struct SessionFiles {
    state: Option<Output>,
    record: ExpertRecord,
}

/// Chat template of the prompt, and grammar of the answer.
struct PromptFormat {
    template: Option<ChatTemplate>,
    grammar: Option<Matcher>,
}

impl Args {
    /// Returns the input files of these options.
    fn inputs(&self) -> Vec<&Path> {
        let files = self.model.files().chain(self.file.as_deref()).chain(self.template.file()).chain(self.batch.file());
        let files = files.chain(self.speculation.file());
        files.chain(self.load_state.as_deref()).chain(self.grammar.files()).collect()
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        self.sampling.check()?;
        let begin = Instant::now();
        let inputs = self.inputs();
        // Open the output first: if that fails, no run is lost.
        let is_follower = ranks::is_follower();
        let output =
            self.trace.as_ref().filter(|_| !is_follower).map(|path| self.force.open(path, &trace::KIND, &inputs));
        let mut output = output.transpose()?;
        let state =
            self.save_state.as_ref().filter(|_| !is_follower).map(|path| self.force.open(path, &saved::KIND, &inputs));
        let mut state = state.transpose()?;
        let batch = self.batch.open(self.force, &inputs)?;
        let mut record = self.experts.open(self.force, &inputs)?;
        let trace = output.is_some().then(|| Arc::new(Recorder::new()));
        let progress = Arc::new(ProgressCounter::default());
        let options = self.how.options(&self.model)?;
        let options = LoadOptions {
            run: engine::EngineOptions {
                backend: backend(self.emulate),
                sequences: self.batch.sequences(),
                stats: self.stats.is_some(),
                pins: record.pins(),
                trace: trace.clone(),
                progress: Some(Arc::clone(&progress)),
                // With speculation, results must be bit-identical to steps of one token.
                exact_batch: true,
                ..self.speculation.options(options.run)
            },
            nextn: self.speculation.nextn(),
            ..options
        };
        if is_follower {
            return ranks::follow(self.model.path(), &options);
        }
        // Read the template and the grammar before the model is opened, which takes longer.
        let template = self.template.template()?;
        let grammar = self.grammar.source()?;
        let watch = Watch::new(&progress);
        let guesser = self.speculation.open(self.model.path(), &options)?;
        let model = LoadedModel::open(self.model.path(), &options)?;
        drop(watch);
        let speculation = self.speculation.for_model(guesser, &model)?;
        if let Some(batch) = batch {
            let defaults = Defaults {
                fields: self.sampling.fields(),
                stop: self.sampling.stop.clone(),
                limit: self.limit(None),
                text_limit: self.limit(Some(DEFAULT_TOKENS)),
                chats: self.is_chat(),
                system: self.system.clone(),
            };
            let (shift, force) = (self.shift, self.force);
            return batch.answer(BatchContext {
                model,
                speculation,
                record,
                template,
                shift,
                defaults,
                force,
                begin,
                inputs,
            });
        }
        for output in output.iter_mut().chain(&mut state) {
            reads(output, model.files().iter().map(PathBuf::as_path))?;
        }
        record.add_inputs(model.engine(), model.files().iter().map(PathBuf::as_path))?;
        let grammar = grammar.map(|source| GrammarChoice::matcher(&source, &model)).transpose()?;
        let mut session = Session::new(model);
        speculation.map_or(Ok(()), |speculation| session.speculate(speculation))?;
        let files = SessionFiles { state, record };
        let result = self.converse_or_write(session, PromptFormat { template, grammar }, progress, begin, files, out);
        if let (Some(output), Some(trace)) = (output, &trace) {
            // Write the trace of a failed run, too: it may show the reason. A run that never began
            // has no trace.
            save(output, trace).or_else(|error| if result.is_err() { Ok(()) } else { Err(error) })?;
        }
        result
    }

    fn converse_or_write(
        &self,
        mut session: Session,
        PromptFormat { template, grammar }: PromptFormat,
        progress: Arc<ProgressCounter>,
        begin: Instant,
        SessionFiles { state, record }: SessionFiles,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        session.set_context_shift(self.shift.shift());
        let before = self.load_state.as_ref().map(|path| session.load_state(path)).transpose()?;
        let before = before.map(|saved::LoadedSequence { tokens, sampler }| {
            // With a seed on the command line, the sampler starts anew; otherwise it continues with
            // its saved state.
            sampler
                .filter(|_| !self.sampling.has_seed())
                .into_iter()
                .for_each(|sampler| session.resume_sampler(sampler));
            tokens
        });
        let mut writer = Writer {
            own_rate: session
                .model()
                .drive()
                .filter(|_| self.stats.is_some())
                .and_then(|drive| drive.rate_now(ixc_measure::streaming::BASELINE)),
            session,
            params: TextParams {
                model: &self.model,
                streaming: &self.how.streaming,
                sampling: self.sampling.clone(),
                grammar,
                inputs: self.inputs(),
                limit: self.limit(None),
                stats: self.stats,
                emulated: self.emulate,
            },
            out,
            seed: self.sampling.seed(),
            progress,
            converses: false,
            advised: false,
            limits: OnceCell::new(),
            loaded: 0.0,
            last: None,
        };
        writer.loaded = begin.elapsed().as_secs_f64();
        if self.stats == Some(StatsFormat::Text) {
            let loaded = writer.loaded;
            stat!(
                Load,
                "{loaded:.2} s, {}, target {}{}",
                count_text(writer.session.model().threads() as u64, "thread"),
                writer.session.model().target().name(),
                if self.emulate { ", emulated" } else { "" }
            );
            let replaced = writer.session.model().replaced_kernels();
            if !replaced.is_empty() {
                stat!(Replaced, "{}: {}", count_text(replaced.len() as u64, "kernel"), replaced.join(", "));
            }
            if let Some((weights, path)) = writer.session.model().tuned_weights() {
                stat!(Tuned, "{} by {}", count_text(weights as u64, "weight"), Printable(&path.display().to_string()));
            }
            let locked = writer.session.model().engine().locked_bytes();
            if locked > 0 {
                stat!(Locked, "{} of weights", Bytes(locked));
            }
            let (states, bytes) = writer.session.model().engine().states();
            let (bytes, context) = (Bytes(bytes), writer.session.model().context());
            stat!(States, "{bytes} for {}{}", count_text(context as u64, "position"), cache_text(states));
        }
        let result = self.text(&mut writer, template, before);
        let ended = result.as_ref().err().is_none_or(|error| error.is::<Interrupted>());
        if let Some(state) = state.filter(|_| ended && writer.session.has_text()) {
            let bytes = writer.session.save_state(state)?;
            note!("ixc: saved the state of the sequence: {}", Bytes(bytes));
        }
        // Write the record of a failed run, too.
        let written = record.write(|| ExpertUse::from_engine(writer.session.model().engine()));
        result.and(written.map_err(anyhow::Error::from))
    }

    /// Writes a text or begins a conversation. `before` holds the tokens of the saved state that
    /// the text continues.
    fn text(
        &self,
        writer: &mut Writer<'_>,
        template: Option<ChatTemplate>,
        before: Option<Vec<u32>>,
    ) -> anyhow::Result<()> {
        let answers = self.answers(writer.session.model(), before.is_some());
        let prompt = match (self.prompt.as_ref().or(self.words.as_ref()), &self.file) {
            (Some(prompt), _) => Some(prompt.clone()),
            (None, Some(file)) => Some(read_prompt(file)?),
            (None, None) if io::stdin().is_terminal() => (before.is_some() && !self.is_chat()).then(String::new),
            (None, None) => Some(read_prompt("-".as_ref())?),
        };
        match prompt {
            Some(prompt) if answers => {
                if prompt.is_empty() {
                    return Err(no_prompt());
                }
                let mut chat = begin_chat(writer.session.model(), template, self.system.as_deref())?;
                chat.say(&prompt);
                writer.answer(&mut chat)
            }
            Some(prompt) => {
                let tokens = match before {
                    Some(mut before) => {
                        before.extend(writer.session.model().encode_more(&prompt)?);
                        before
                    }
                    None => writer.session.model().encode_prompt(&prompt)?,
                };
                if tokens.is_empty() {
                    return Err(no_prompt());
                }
                let interrupted = writer.write(&tokens, self.limit(Some(DEFAULT_TOKENS)), None)?.interrupted;
                if interrupted { Err(Interrupted.into()) } else { Ok(()) }
            }
            None if self.raw => Err(no_prompt()),
            None => {
                let chat = begin_chat(writer.session.model(), template, self.system.as_deref())?;
                writer.converse(chat)
            }
        }
    }
}

impl Args {
    /// Returns whether the options request a chat.
    fn is_chat(&self) -> bool {
        self.chat || self.system.is_some() || self.template.is_given()
    }

    /// Returns whether the prompt is a message to answer, rather than text to continue. A saved
    /// state is always continued.
    fn answers(&self, model: &LoadedModel, continues_state: bool) -> bool {
        self.is_chat() || (!self.raw && !continues_state && model.chat_template().is_some())
    }

    /// Returns the max number of tokens to generate, or `default` if no count was given.
    fn limit(&self, default: Option<usize>) -> Option<usize> {
        match self.count {
            None => default,
            // A negative number has no limit.
            Some(count) => usize::try_from(count).ok(),
        }
    }
}

/// Returns the formats of keys and values as a phrase for a message; an empty text without a KV
/// cache.
fn cache_text(states: &[State]) -> String {
    let names = Vec::from_iter(cache_formats(states));
    if names.is_empty() { String::new() } else { format!(", KV cache in {}", names.join(" and ")) }
}

/// Begins a conversation. The template may come from an untrusted file, so this program renders it
/// in a process of its own.
fn begin_chat(model: &LoadedModel, template: Option<ChatTemplate>, system: Option<&str>) -> anyhow::Result<Chat> {
    let renderer = helper_program().map_err(ixc_error::Error::io(Path::new("/proc/self/exe"), "find"))?;
    Ok(Chat::new(model, chat::ChatOptions { template, renderer: Some(renderer) }, system)?)
}

/// Writes a trace, and reports events that are missing from it.
fn save(output: Output, trace: &Recorder) -> anyhow::Result<()> {
    let dropped = trace.save_to(output).map_err(ixc_error::Error::from)?;
    if dropped > 0 {
        note!(
            "ixc: the trace is incomplete: {} did not fit in its memory; trace fewer tokens",
            count_text(dropped, "event")
        );
    }
    Ok(())
}

/// Reads a prompt from a file without its final newline, which editors and `echo` add. With the
/// newline, a model would continue on the next line.
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
