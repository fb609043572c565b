//! `ixc run`: a model, a prompt, and text as it is made.

use std::cell::OnceCell;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ixc::chat::{self, Chat};
use ixc::compile;
use ixc::files::Output;
use ixc::frontend::template::{ChatTemplate, own_program};
use ixc::grammar::Matcher;
use ixc::ir::plan::State;
use ixc::runtime::engine;
use ixc::runtime::gauge::Gauge;
use ixc::runtime::trace::{self, Recorder};
use ixc::session::{Session, SessionOptions};

use super::choose::{ModelChoice, PinChoice, StreamingChoice, TargetChoice, backend, positions};
use super::force::{Force, reads};
use super::grammar::GrammarChoice;
use super::inspect_plan::cache_formats;
use super::interrupt::Interrupted;
use super::output::{Bytes, Watch, counted, note};
use super::sampling::SamplingArgs;
use super::template::TemplateChoice;
use super::writer::{Wanted, Writer};
use super::{BadInput, streaming, tokenize};

/// Tokens to write where nothing says how many and no token ends the text.
const DEFAULT_TOKENS: usize = 256;

/// Runs a model: text comes as it is made.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc run -p \"The borrow checker\"               the built-in demo model
  ixc run model.gguf -p \"Once upon a time\" -n 64 --temp 0 --stats
  ixc run model.gguf --chat                      a conversation (/help in it)
  ixc run base.gguf --chat --chat-template chatml
  cat question.txt | ixc run model.gguf --chat   one answer
  ixc run plan.ixp -f prompt.txt -t 8
  ixc run large.gguf -p Hello --memory 6GiB      experts are read as needed
  ixc run model.gguf -p Hello --trace out.json   a timeline, for ui.perfetto.dev
  ixc run -p \"A user as JSON: \" -j '{\"type\": \"object\"}'
  ixc run --target amx --emulate -p Hello -n 4   code for another CPU

The prompt is PROMPT, -p, -f or standard input; without any of them, on a terminal, a conversation begins. \
One newline at the end of a file or of standard input is no part of the prompt. \
Names of special tokens in the prompt are those tokens; with --chat they are text like any other. \
Text goes to standard output, everything else to standard error. Ctrl-C stops the text; the exit \
status is 130 then. Where no text is being written it ends the program.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// The prompt.
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "file"])]
    words: Option<String>,
    /// The prompt.
    #[arg(short, long, conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the prompt from a file, `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Use the model's chat template: the prompt is what the user says.
    #[arg(long, visible_alias = "conversation", alias = "cnv")]
    chat: bool,
    /// Use no chat template: the model goes on from the prompt, which is what it does without --chat, too, but then says that it has one.
    #[arg(long, visible_alias = "no-conversation", alias = "no-cnv", conflicts_with = "chat")]
    no_chat: bool,
    /// What the system message says; implies --chat.
    #[arg(long, visible_alias = "system-prompt", alias = "sys", value_name = "TEXT", conflicts_with = "no_chat")]
    system: Option<String>,
    #[command(flatten)]
    template: TemplateChoice,
    /// Most tokens to write; -1: until the model ends or the context is full [default: 256; with --chat -1].
    #[arg(short = 'n', long = "tokens", aliases = ["n-predict", "predict"], value_name = "N", allow_negative_numbers = true)]
    count: Option<i64>,
    /// Threads [default: one for each core].
    #[arg(short, long, value_name = "N", env = "IXC_THREADS", hide_env_values = true)]
    threads: Option<usize>,
    #[command(flatten)]
    pin: PinChoice,
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
    force: Force,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    grammar: GrammarChoice,
}

impl Args {
    /// Files that are named here and read.
    fn inputs(&self) -> Vec<&Path> {
        self.model.files().chain(self.file.as_deref()).chain(self.template.file()).chain(self.grammar.files()).collect()
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        self.sampling.check()?;
        let begin = Instant::now();
        let inputs = self.inputs();
        // Before the run, which would be lost.
        let output = self.trace.as_ref().map(|path| self.force.open(path, &trace::KIND, &inputs));
        let mut output = output.transpose()?;
        let trace = output.is_some().then(|| Arc::new(Recorder::new()));
        let gauge = Arc::new(Gauge::default());
        let streaming = self.streaming.options()?;
        let (target, pack) = (self.target.target(), self.no_pack.then_some(false));
        let options = SessionOptions {
            compile: compile::Options { target, caches: self.target.caches(), pack, ..streaming.compile },
            run: engine::Options {
                threads: self.threads,
                pin: self.pin.pin,
                context: self.context.map(positions),
                backend: backend(self.emulate),
                skip_weight_check: self.no_check,
                stats: self.stats,
                trace: trace.clone(),
                gauge: Some(Arc::clone(&gauge)),
                ..streaming.run
            },
            model_file: self.model.file().map(Path::to_owned),
            ..streaming
        };
        // Before the model is opened, which takes longer.
        let template = self.template.template()?;
        let grammar = self.grammar.source()?;
        let watch = Watch::new(&gauge);
        let session = Session::open(self.model.path(), &options)?;
        drop(watch);
        if let Some(output) = &mut output {
            reads(output, session.files().iter().map(PathBuf::as_path))?;
        }
        let grammar = grammar.map(|source| GrammarChoice::matcher(&source, &session)).transpose()?;
        let result = self.converse_or_write(session, template, grammar, gauge, begin, out);
        if let (Some(output), Some(trace)) = (output, &trace) {
            // Of a run that failed, too: it may show why. Of one that never began there is nothing to show.
            save(output, trace).or_else(|error| if result.is_err() { Ok(()) } else { Err(error) })?;
        }
        result
    }

    fn converse_or_write(
        &self,
        session: Session,
        template: Option<ChatTemplate>,
        grammar: Option<Matcher>,
        gauge: Arc<Gauge>,
        begin: Instant,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let mut writer = Writer {
            own_rate: session.drive().filter(|_| self.stats).and_then(|drive| drive.rate_now(streaming::BASELINE)),
            session,
            wanted: Wanted {
                model: &self.model,
                streaming: &self.streaming,
                sampling: &self.sampling,
                grammar,
                inputs: self.inputs(),
                limit: self.limit(None),
                stats: self.stats,
                emulated: self.emulate,
            },
            out,
            seed: self.sampling.seed(),
            gauge,
            converses: false,
            advised: false,
            limits: OnceCell::new(),
        };
        if self.stats {
            let loaded = begin.elapsed().as_secs_f64();
            note!(
                "load      {loaded:.2} s, {}, target {}{}",
                counted(writer.session.threads() as u64, "thread"),
                writer.session.target().name(),
                if self.emulate { ", emulated" } else { "" }
            );
            let (states, bytes) = writer.session.engine().states();
            let (bytes, context) = (Bytes(bytes), writer.session.context());
            note!("states    {bytes} for {context} positions{}", cached(states));
        }
        let prompt = match (self.prompt.as_ref().or(self.words.as_ref()), &self.file) {
            (Some(prompt), _) => Some(prompt.clone()),
            (None, Some(file)) => Some(read_prompt(file)?),
            (None, None) if io::stdin().is_terminal() => None,
            (None, None) => Some(read_prompt("-".as_ref())?),
        };
        match prompt {
            Some(prompt) if self.chats() => {
                if prompt.is_empty() {
                    return Err(no_prompt());
                }
                let mut chat = begin_chat(&writer.session, template, self.system.as_deref())?;
                chat.say(&prompt);
                writer.answer(&mut chat)
            }
            Some(prompt) => {
                let tokens = writer.session.encode_prompt(&prompt)?;
                if tokens.is_empty() {
                    return Err(no_prompt());
                }
                if writer.session.chat_template().is_some() && !self.no_chat {
                    note!(
                        "ixc: the model has a chat template, which a plain prompt does not use; --chat does, and --no-chat hides this line"
                    );
                }
                let interrupted = writer.write(&tokens, self.limit(Some(DEFAULT_TOKENS)), None)?.interrupted;
                if interrupted { Err(Interrupted.into()) } else { Ok(()) }
            }
            None if self.no_chat => Err(no_prompt()),
            None => {
                let chat = begin_chat(&writer.session, template, self.system.as_deref())?;
                writer.converse(chat)
            }
        }
    }
}

impl Args {
    /// Whether the prompt is what a user says in a conversation.
    fn chats(&self) -> bool {
        self.chat || self.system.is_some() || self.template.is_given()
    }

    /// How many tokens to write, where nothing else is said.
    fn limit(&self, default: Option<usize>) -> Option<usize> {
        match self.count {
            None => default,
            // A negative number has no limit.
            Some(count) => usize::try_from(count).ok(),
        }
    }
}

/// What keys and values are kept in, as a part of a sentence; nothing where there are none.
fn cached(states: &[State]) -> String {
    let names = Vec::from_iter(cache_formats(states));
    if names.is_empty() { String::new() } else { format!(", keys and values in {}", names.join(" and ")) }
}

/// Begins a conversation. Its template, which may come from a file that nobody vouches for, is rendered by this program in a process of its
/// own.
fn begin_chat(session: &Session, template: Option<ChatTemplate>, system: Option<&str>) -> anyhow::Result<Chat> {
    let renderer = own_program().map_err(ixc::Error::io(Path::new("/proc/self/exe"), "find"))?;
    Ok(Chat::new(session, chat::Options { template, renderer: Some(renderer) }, system)?)
}

/// Writes a trace, and says where it is incomplete.
fn save(output: Output, trace: &Recorder) -> anyhow::Result<()> {
    let dropped = trace.save_to(output).map_err(ixc::Error::from)?;
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
