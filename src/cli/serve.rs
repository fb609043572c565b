//! `ixc serve`: a model over HTTP.

use std::ffi::OsStr;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ixc::frontend::template::own_program;
use ixc::prompt_cache;
use ixc::runtime::engine;
use ixc::runtime::gauge::Gauge;
use ixc::serving::{self, Host, serve};
use ixc::session::{Session, SessionOptions};
use ixc_files::{ReadError, read_argument};

use super::choose::{ModelChoice, RunChoice};
use super::embed::PoolingChoice;
use super::expert_files::ExpertFiles;
use super::force::Force;
use super::output::{Watch, counted, note};
use super::shift::ShiftChoice;
use super::size::Size;
use super::template::TemplateChoice;
use super::{BadInput, Usage, interrupt};

/// Most bytes of a file of keys.
const MOST_KEY_BYTES: u64 = 1 << 20;
/// Bytes of the folder for prompts, and of memory where there is a folder, where nothing is said.
const FOLDER_BYTES: u64 = 16 << 30;
const MEMORY_BYTES: u64 = 1 << 30;
/// Requests that may wait for each that is worked on.
const QUEUE: usize = 16;

/// Serves a model over HTTP: the interfaces of OpenAI (/v1/chat/completions, /v1/completions, /v1/models), Anthropic (/v1/messages) and llama-server (/completion,
/// /tokenize, ...).
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc serve model.gguf                     on http://127.0.0.1:8080
  ixc serve model.gguf --parallel 8 -c 8192
  ixc serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  ixc serve model.gguf --prompt-cache ~/.cache/prompts --prompt-cache-size 32GiB
  ixc serve qwen3-embedding.gguf --embeddings    /v1/embeddings
  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Hi\"}'

Requests that come at once are computed together, --parallel of them, each in a context of --ctx; the others wait, and where too many do, the answer \
is 503. What a prompt has in common with an earlier one is not computed again. A request whose client goes away ends.

Without keys it listens on this machine alone. Ctrl-C and SIGTERM let answers end that are being made; a second Ctrl-C does not.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port to listen on; 0 takes a free one, and says which.
    #[arg(long, default_value_t = 8080, env = "IXC_PORT", hide_env_values = true)]
    port: u16,
    /// A key that requests must have (Authorization: Bearer KEY); better in a file, since others see command lines.
    #[arg(long, value_name = "KEY", env = "IXC_API_KEY", hide_env_values = true,
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Vec<String>,
    /// A file with such keys, one a line.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen on an address that others reach, without keys.
    #[arg(long)]
    no_api_key: bool,
    /// The model's name in answers [default: its file's].
    #[arg(short, long, value_name = "NAME")]
    alias: Option<String>,
    /// Requests that are computed together.
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
    /// Requests that may wait [default: 16 for each of --parallel].
    #[arg(long, value_name = "N")]
    queue: Option<usize>,
    /// Give each request the bits that it has alone also where tiles multiply (target amx), which takes longer. On other targets it has them anyway.
    #[arg(long)]
    exact_batch: bool,
    /// Keep what prompts begin with in this folder, so that it is not computed again, also after a restart. It must be yours alone: whoever reads it can
    /// read what was asked.
    #[arg(long, value_name = "DIR")]
    prompt_cache: Option<PathBuf>,
    /// Most bytes of that folder; what was not used for the longest time goes first [default: 16GiB].
    #[arg(long, value_name = "SIZE", requires = "prompt_cache")]
    prompt_cache_size: Option<Size>,
    /// Keep what prompts begin with in so much memory, beside what sequences take [default: 1GiB with --prompt-cache, otherwise nothing].
    #[arg(long, value_name = "SIZE")]
    prompt_cache_memory: Option<Size>,
    /// Let requests save sequences to this folder and restore them (POST /slots/N?action=save).
    #[arg(long, value_name = "DIR")]
    slot_save_path: Option<PathBuf>,
    #[command(flatten)]
    experts: ExpertFiles,
    #[command(flatten)]
    force: Force,
    /// Make embeddings (/v1/embeddings) and no text: the model is compiled without its output matrix. A plan must be one of `ixc compile --embeddings`.
    #[arg(long, visible_alias = "embedding", conflicts_with_all = ["prompt_cache", "prompt_cache_memory", "slot_save_path", "context_shift", "drop_turns"])]
    embeddings: bool,
    #[command(flatten)]
    pooling: PoolingChoice,
    #[command(flatten)]
    shift: ShiftChoice,
    /// Leave the oldest turns out of a conversation that is too long for three quarters of the context; the system message stays. Otherwise what is longer than
    /// the context is refused.
    #[arg(long)]
    drop_turns: bool,
    #[command(flatten)]
    template: TemplateChoice,
    #[command(flatten)]
    how: RunChoice,
}

impl Args {
    /// Runs the command.
    pub fn run(self, _: &mut dyn Write) -> anyhow::Result<()> {
        let keys = self.keys()?;
        if keys.is_empty() && !self.host.is_loopback() && !self.no_api_key {
            let wrong =
                format!("others reach {}: --api-key-file says who may ask, --no-api-key that anybody may", self.host);
            return Err(Usage(wrong).into());
        }
        let template = self.template.template()?;
        if let Some(folder) = &self.slot_save_path {
            let there = std::fs::metadata(folder).map_err(ixc::Error::io(folder, "save sequences in"))?;
            if !there.is_dir() {
                return Err(BadInput(format!("{} is no folder", folder.display())).into());
            }
        }
        let inputs: Vec<&Path> = self.model.files().chain(self.template.file()).collect();
        let mut record = self.experts.open(self.force, &inputs)?;
        let gauge = Arc::new(Gauge::default());
        let options = self.how.options(&self.model)?;
        let options = SessionOptions {
            run: engine::Options {
                sequences: self.parallel,
                exact_batch: self.exact_batch,
                pins: record.pins(),
                gauge: Some(Arc::clone(&gauge)),
                ..options.run
            },
            embeddings: self.embeddings,
            ..options
        };
        // Before the model is loaded, which takes longer.
        let address = SocketAddr::new(self.host, self.port);
        let listener =
            serving::listen(address).map_err(ixc::Error::io(Path::new(&address.to_string()), "listen on"))?;
        let watch = Watch::new(&gauge);
        let session = Session::open(self.model.path(), &options)?;
        drop(watch);
        record.opened(session.engine(), session.files().iter().map(PathBuf::as_path))?;
        // As it is called on the command line where it has no file.
        let stem = self.model.path().map_or(Some(OsStr::new("demo")), Path::file_stem);
        let stem = || stem.map(|stem| stem.to_string_lossy().into_owned());
        let name = self.alias.clone().or_else(stem).unwrap_or_default();
        let renderer = own_program().map_err(ixc::Error::io(Path::new("/proc/self/exe"), "find"))?;
        let queue = self.queue.unwrap_or(QUEUE * self.parallel as usize);
        let (threads, context) = (session.threads() as u64, session.context());
        let (slot_folder, prompts) = (self.slot_save_path.clone(), self.prompts());
        let of = serving::Options {
            name: name.clone(),
            queue,
            template,
            renderer: Some(renderer),
            slot_folder,
            prompts,
            shift: self.shift.shift(),
            drops_turns: self.drop_turns,
            pooling: self.pooling.pooling,
        };
        let host = Host::new(session, of)?;
        let local = listener.local_addr().map_err(ixc::Error::io(Path::new(&address.to_string()), "listen on"))?;
        note!(
            "ixc: {name} on http://{local}, {} at once in contexts of {context}, {}",
            counted(self.parallel.into(), "request"),
            counted(threads, "thread")
        );
        let options = ixc_server::Options { keys, ..ixc_server::Options::default() };
        let (end, ended) = tokio::sync::oneshot::channel();
        interrupt::once(move || {
            note!("ixc: ending; Ctrl-C again ends at once");
            let _ = end.send(());
        });
        let used = serve(host, listener, options, ended).map_err(ixc::Error::io(Path::new("the server"), "run"))?;
        used.map_or(Ok(()), |used| record.write(|| used))?;
        Ok(())
    }

    /// Where what prompts begin with is kept.
    fn prompts(&self) -> Option<prompt_cache::Options> {
        let memory = self.prompt_cache_memory.map(|Size(bytes)| bytes);
        let folder = self.prompt_cache.clone();
        let memory = memory.unwrap_or(if folder.is_some() { MEMORY_BYTES } else { 0 });
        let folder_bytes = self.prompt_cache_size.map_or(FOLDER_BYTES, |Size(bytes)| bytes);
        (folder.is_some() || memory > 0).then_some(prompt_cache::Options { folder, folder_bytes, memory })
    }

    /// All keys.
    fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = match read_argument(path, MOST_KEY_BYTES) {
                Err(ReadError::Io { source, .. }) => return Err(ixc::Error::io(path, "read")(source).into()),
                other => other.map_err(|error| BadInput(error.to_string()))?,
            };
            keys.extend(text.lines().map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned));
            if keys.is_empty() {
                return Err(BadInput(format!("{} has no key", path.display())).into());
            }
        }
        Ok(keys)
    }
}
