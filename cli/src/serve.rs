//! `ixc serve`: serves models over HTTP.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ixc_failure::Remedy;
use ixc_files::private_files::private_folder;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel, LongestContext};
use ixc_generate::prompt_cache;
use ixc_generate::speculate::Speculation;
use ixc_runtime::engine;
use ixc_runtime::progress::ProgressCounter;
use ixc_sandbox::Role;
use ixc_serve::http::{LogFormat, RequestLog};
use ixc_serve::service::{LoadingServer, listen, serve};
use ixc_serve::serving::{self, Host, ModelSource, Registry, gives_embeddings};
use ixc_serve::supervisor::{Notifier, inherited_listener};
use ixc_text::template::ChatTemplate;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::access::AccessChoice;
use super::embed::PoolingChoice;
use super::expert_files::{ExpertFiles, ExpertRecord};
use super::force::Force;
use super::invocation::helper_program;
use super::model_args::{ModelChoice, RunChoice};
use super::model_name::ModelName;
use super::output::{Bytes, Watch, count_text, note};
use super::sampling::SamplingArgs;
use super::sandbox::{Sandbox, SandboxFiles, SandboxMode};
use super::served_models::{models_of, name_of};
use super::shift::ShiftChoice;
use super::size::Size;
use super::speculation::SpeculationChoice;
use super::template::TemplateChoice;
use super::{BadInput, Usage, hints, interrupt, log, ranks};

/// Default max size of the prompt cache: in its folder, and in memory.
const FOLDER_BYTES: u64 = 16 << 30;
const MEMORY_BYTES: u64 = 1 << 30;
/// Max number of waiting requests for each request that is computed.
const QUEUE: usize = 16;
/// Time limit of a step without `--request-timeout`. A step of the largest models takes some
/// minutes, if its experts come from a slow drive.
const STEP_TIMEOUT: Duration = Duration::from_secs(3600);

/// Serves models over HTTP: the APIs of OpenAI (/v1/chat/completions, /v1/completions, /v1/models),
/// Anthropic (/v1/messages) and llama-server (/completion, /tokenize, ...), and a web page.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc serve model.gguf                     on http://127.0.0.1:8080
  ixc serve model.gguf --parallel 8 -c 8192
  ixc serve model.gguf --temp 0 -n 256     defaults of requests
  ixc serve small.gguf large.gguf --memory 24GiB
  ixc serve --models-dir ~/models
  ixc serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  ixc serve model.gguf --spec ngram        speculative decoding
  ixc serve model.gguf --prompt-cache ~/.cache/prompts --prompt-cache-size 32GiB
  ixc serve model.gguf bge-small.gguf      chat, and embeddings of texts
  ixc serve embedding.gguf --embeddings    only /v1/embeddings
  ixc serve model.gguf --allowed-origin https://chat.example
  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Hi\"}'

Up to --parallel requests are computed together, each with a context of --ctx. Others wait; if too \
many wait, the server answers 503. A prefix that a prompt shares with an earlier one is not \
computed again. A request ends when its client disconnects.

With several models, a request selects one by the field \"model\": the name of its file without \
the extension. Without the field, the first model answers. Loaded models share --memory, or the \
free memory. If a requested model does not fit, idle models are unloaded, the least recently used \
first.

Each request is logged as one line on standard error, or in --log-file: time, client, path, \
status, seconds, tokens and their rate. -q turns the lines off.

Without API keys the server listens on this machine only, and accepts requests to localhost or its \
address; --allowed-host adds names. Web pages of this machine may send requests; --allowed-origin \
adds others. Ctrl-C and SIGTERM let running answers finish; a second Ctrl-C stops them.")]
pub struct Args {
    #[command(flatten)]
    model: ModelChoice,
    /// More models. Requests select one by name; each is loaded at its first request.
    #[arg(value_name = "MORE", value_parser = ModelName::parser())]
    more: Vec<ModelName>,
    /// Serve all models and plans of this folder, named by their files.
    #[arg(long, value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// Address or host name to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    host: String,
    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    #[command(flatten)]
    access: AccessChoice,
    /// Format of the request log.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogForm::Text)]
    log_format: LogForm,
    /// Name of the model in answers [default: its file's name].
    #[arg(short, long, value_name = "NAME")]
    alias: Option<String>,
    /// Number of requests computed together.
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
    /// Maximum number of waiting requests [default: 16 times --parallel].
    #[arg(long, value_name = "N")]
    queue: Option<usize>,
    /// Maximum number of prompt tokens in a step while other requests decode. Fewer make decoding
    /// smoother and prompts slower [default: 256].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    prompt_rows: Option<u32>,
    /// Make answers on target amx independent of other requests, bit for bit, which is slower. On
    /// other targets, answers are always independent.
    #[arg(long)]
    exact_batch: bool,
    /// Seconds between SIGTERM or Ctrl-C and the end of accepting requests. In this time /health
    /// returns 503, so that load balancers send requests to other servers.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=3600))]
    drain_delay: u64,
    /// Time limit of a request, its wait included. A request that takes longer ends with an error,
    /// and the tokens so far if it is streamed [default: no limit].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    request_timeout: Option<u64>,
    /// Maximum number of requests of an API key that are computed together; its others wait, also
    /// while places are free. Needs API keys [default: no limit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    per_key_parallel: Option<u32>,
    /// Prompt cache on disk: keep prefixes of prompts in this folder, also across restarts. Only
    /// you may have access: the files reveal the prompts.
    #[arg(long, value_name = "DIR")]
    prompt_cache: Option<PathBuf>,
    /// Maximum size of the prompt cache on disk; the least recently used prefixes are removed first
    /// [default: 16GiB].
    #[arg(long, value_name = "SIZE", requires = "prompt_cache")]
    prompt_cache_size: Option<Size>,
    /// Memory for prefixes of prompts, in addition to the sequences' memory [default: 1GiB with
    /// --prompt-cache, otherwise none].
    #[arg(long, value_name = "SIZE")]
    prompt_cache_memory: Option<Size>,
    /// Let requests save sequences to this folder and restore them (POST /slots/N?action=save).
    #[arg(long, value_name = "DIR")]
    slot_save_path: Option<PathBuf>,
    /// Limit this process after loading to its files, its socket and the system calls of serving,
    /// without new code. `auto` uses what the kernel supports, `on` fails if a part is missing
    /// [default: auto].
    #[arg(long, value_enum, value_name = "WHEN")]
    sandbox: Option<SandboxMode>,
    #[command(flatten)]
    experts: ExpertFiles,
    #[command(flatten)]
    force: Force,
    /// Serve embeddings (/v1/embeddings) and no text. The model is compiled without its output
    /// matrix; a plan must come from `ixc compile --embeddings`.
    #[arg(long, visible_alias = "embedding", conflicts_with_all = ["prompt_cache", "prompt_cache_memory", "slot_save_path", "context_shift", "drop_turns"])]
    embeddings: bool,
    #[command(flatten)]
    pooling: PoolingChoice,
    #[command(flatten)]
    shift: ShiftChoice,
    /// Drop the oldest turns of a conversation that fills more than three quarters of the context;
    /// the system message stays. Without this, a prompt longer than the context is refused.
    #[arg(long)]
    drop_turns: bool,
    /// Default limit of tokens per answer, or -1 for no limit but the context [default: 16 for
    /// /v1/completions, otherwise -1].
    #[arg(short = 'n', long = "tokens", aliases = ["n-predict", "predict"], value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..=1 << 24))]
    tokens: Option<i64>,
    #[command(flatten)]
    template: TemplateChoice,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    how: RunChoice,
    #[command(flatten)]
    speculation: SpeculationChoice,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogForm {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogForm {
    /// Starts the request log; `None` without a writer.
    fn request_log(self, writer: Option<Box<dyn Write + Send>>) -> anyhow::Result<Option<Arc<RequestLog>>> {
        let format = match self {
            LogForm::Text => LogFormat::Text,
            LogForm::Json => LogFormat::Json,
        };
        let failed = ixc_error::Error::io(Path::new("the request log"), "start");
        writer.map(|writer| Ok(Arc::new(RequestLog::new(format, writer).map_err(failed)?))).transpose()
    }
}

/// Addresses to listen on, or a socket that a supervisor opened.
struct Endpoint {
    host: String,
    addresses: Vec<SocketAddr>,
    inherited: Option<TcpListener>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, _: &mut dyn Write) -> anyhow::Result<()> {
        self.sampling.check()?;
        ixc_serve::http::check_defaults(&self.defaults()).map_err(Usage)?;
        let keys = self.access.keys()?;
        if self.per_key_parallel.is_some() && keys.is_empty() {
            return Err(Usage("--per-key-parallel needs API keys (--api-key, --api-key-file)".to_owned()).into());
        }
        let notifier = Notifier::from_environment().map_err(ixc_serve::Error::from)?;
        let endpoint = self.endpoint(&keys)?;
        let template = self.template.template()?;
        self.check_slot_folder()?;
        let inputs: Vec<&Path> = self.model.files().chain(self.template.file()).collect();
        let mut record = self.experts.open(self.force, &inputs)?;
        let progress = Arc::new(ProgressCounter::default());
        let options = self.load_options(&record, &progress)?;
        let sources = self.sources()?;
        if ranks::transport().is_some() && sources.len() > 1 {
            return Err(
                Usage(format!("several ranks can serve only one model; {} models are given", sources.len())).into()
            );
        }
        if ranks::is_follower() {
            let path = sources[0].path.as_deref();
            let embeddings = options.embeddings || gives_embeddings(path)?;
            return ranks::follow(path, &LoadOptions { embeddings, ..options });
        }
        // Listen before the model is loaded, which takes longer.
        let Endpoint { host, addresses, inherited } = endpoint;
        let is_inherited = inherited.is_some();
        let address = format!("{}:{}", self.host, self.port);
        let refused = || ixc_error::Error::io(Path::new(&address), "listen on this address (--host, --port)");
        let listener = inherited.map_or_else(|| listen(&addresses), Ok).map_err(refused())?;
        let serving_options = self.serving_options(&sources[0].name, template)?;
        let local = listener.local_addr().map_err(refused())?;
        // The sandbox limits which files can be opened.
        let writer = log::writer()?;
        // Until the server announces its address, a signal ends the program at once. From then on,
        // signals drain the server, because a supervisor may react to the announcement.
        let (models, log, ended) = match &*sources {
            [source] => {
                // Requests to the socket of a service manager wait, so that none is refused at a
                // restart. On other sockets, a thread refuses requests while the model is loaded.
                // It ends before the sandbox limits all other threads. The thread of its log ends
                // by then, too, unless its output is blocked for a second.
                let refuse = |log| (!is_inherited).then(|| LoadingServer::start(&listener, log)).transpose();
                let early_writer = log::writer()?;
                let sandbox = self.begin_sandbox(&options, &sources)?;
                let loading = refuse(self.log_format.request_log(early_writer)?)?;
                let (model, speculation, is_chat) = self.load(source, options, &progress)?;
                drop(loading);
                record.add_inputs(model.engine(), model.files().iter().map(PathBuf::as_path))?;
                sandbox.map_or(Ok(()), |sandbox| sandbox.finish(Role::Server))?;
                // Loading a prompt cache takes time, too, so requests are refused meanwhile. This
                // thread starts after the sandbox, and so has all limits.
                let log = self.log_format.request_log(writer)?;
                let loading = self.prompt_cache.as_ref().map_or(Ok(None), |_| refuse(log.clone()))?;
                let announcement = self.announcement(&source.name, &model, local);
                let host = Host::new(model, speculation, serving_options)?;
                drop(loading);
                let ended = end_on_signal();
                note!("{announcement}");
                if is_chat {
                    self.point_browsers(local);
                }
                (Registry::one(host), log, ended)
            }
            _ => {
                let sandbox = self.begin_sandbox(&options, &sources)?;
                sandbox.map_or(Ok(()), |sandbox| sandbox.finish(Role::Loader))?;
                let log = self.log_format.request_log(writer)?;
                let ended = end_on_signal();
                (self.registry(sources, options, serving_options, local)?, log, ended)
            }
        };
        let server_options = ixc_serve::http::AppOptions {
            hosts: self.access.hosts(&host),
            checks_host: self.access.checks_host(&keys),
            origins: self.access.origins(),
            keys,
            defaults: self.defaults(),
            log,
            advice: self.advice(),
            drain_delay: Duration::from_secs(self.drain_delay),
            per_key_parallel: self.per_key_parallel.map(|requests| requests as usize),
            request_timeout: self.request_timeout.map(Duration::from_secs),
            ..ixc_serve::http::AppOptions::default()
        };
        notifier.ready(local).map_err(ixc_serve::Error::from)?;
        let expert_use = serve(models, listener, server_options, notifier, ended)?;
        expert_use.map_or(Ok(()), |expert_use| record.write(|| expert_use))?;
        Ok(())
    }

    /// Returns the addresses to listen on, or the socket of a supervisor.
    ///
    /// # Errors
    /// If other machines would have access without a key, and `--no-api-key` does not allow it.
    fn endpoint(&self, keys: &[String]) -> anyhow::Result<Endpoint> {
        let inherited = inherited_listener().map_err(ixc_serve::Error::from)?;
        let (host, addresses) = match &inherited {
            None => (self.host.clone(), self.addresses()?),
            Some(listener) => {
                let address = listener
                    .local_addr()
                    .map_err(ixc_error::Error::io(Path::new("the inherited socket"), "listen on"))?;
                (address.ip().to_string(), vec![address])
            }
        };
        let is_local = addresses.iter().all(|address| address.ip().is_loopback());
        if keys.is_empty() && !is_local && !self.access.no_api_key {
            let wrong = format!(
                "address {host} is reachable from the network: give --api-key-file, or --no-api-key to serve every client"
            );
            return Err(Usage(wrong).into());
        }
        Ok(Endpoint { host, addresses, inherited })
    }

    /// Checks that the folder of saved sequences is a folder.
    fn check_slot_folder(&self) -> anyhow::Result<()> {
        let Some(folder) = &self.slot_save_path else { return Ok(()) };
        let metadata = std::fs::metadata(folder).map_err(ixc_error::Error::io(folder, "save sequences in"))?;
        match metadata.is_dir() {
            true => Ok(()),
            false => Err(BadInput(format!("{} is not a folder", folder.display())).into()),
        }
    }

    /// Limits this process before models are loaded.
    fn begin_sandbox(&self, options: &LoadOptions, sources: &[ModelSource]) -> anyhow::Result<Option<Sandbox>> {
        let mode = match (self.sandbox, ranks::transport()) {
            (Some(SandboxMode::Off), _) => return Ok(None),
            (None | Some(SandboxMode::Auto), Some(_)) => {
                note!("ixc: no sandbox: MPI needs system calls that the sandbox forbids");
                return Ok(None);
            }
            (Some(SandboxMode::On), Some(_)) => {
                let reason = "MPI needs system calls that the sandbox forbids";
                return Err(Usage(format!("--sandbox on is not possible on several ranks: {reason}")).into());
            }
            (mode, None) => mode.unwrap_or(SandboxMode::Auto),
        };
        if let Some(folder) = &self.prompt_cache {
            private_folder(folder).map_err(ixc_error::Error::io(folder, "keep prompts in"))?;
        }
        let paths: Vec<&Path> = sources.iter().filter_map(|source| source.path.as_deref()).collect();
        let mut files = SandboxFiles::from_options(options, &paths);
        let folders = [&self.prompt_cache, &self.slot_save_path];
        folders.into_iter().flatten().for_each(|folder| files.write(folder));
        self.experts.output().into_iter().for_each(|file| files.write_output(file));
        if let [_, _, ..] = sources {
            files.read_models(paths);
        }
        files.has_abstract_socket =
            std::env::var_os("NOTIFY_SOCKET").is_some_and(|address| address.as_encoded_bytes().starts_with(b"@"));
        Sandbox::begin(mode, files)
    }

    /// Returns the options with which models are loaded.
    fn load_options(&self, record: &ExpertRecord, progress: &Arc<ProgressCounter>) -> anyhow::Result<LoadOptions> {
        let options = self.how.options(&self.model)?;
        Ok(LoadOptions {
            run: self.speculation.options(engine::EngineOptions {
                sequences: self.parallel,
                exact_batch: self.exact_batch,
                step_timeout: Some(self.request_timeout.map_or(STEP_TIMEOUT, Duration::from_secs)),
                pins: record.pins(),
                progress: Some(Arc::clone(progress)),
                ..options.run
            }),
            embeddings: self.embeddings,
            nextn: self.speculation.nextn(),
            longest_context: Some(LongestContext { reserved: self.prompts().map_or(0, |prompts| prompts.memory) }),
            ..options
        })
    }

    /// Returns the options of requests to a model.
    fn serving_options(&self, name: &str, template: Option<ChatTemplate>) -> anyhow::Result<serving::ServingOptions> {
        let renderer = helper_program().map_err(ixc_error::Error::io(Path::new("/proc/self/exe"), "find"))?;
        Ok(serving::ServingOptions {
            name: name.to_owned(),
            queue: self.queue.unwrap_or(QUEUE * self.parallel as usize),
            template,
            compiler: Some(renderer.clone()),
            renderer: Some(renderer),
            slot_folder: self.slot_save_path.clone(),
            prompts: self.prompts(),
            prompt_rows: self.prompt_rows.map(|rows| rows as usize),
            shift: self.shift.shift(),
            drops_turns: self.drop_turns,
            pooling: self.pooling.pooling,
        })
    }

    /// Loads the only model. Returns it with its speculation, and whether it generates text.
    fn load(
        &self,
        ModelSource { path, .. }: &ModelSource,
        options: LoadOptions,
        progress: &Arc<ProgressCounter>,
    ) -> anyhow::Result<(LoadedModel, Option<Speculation>, bool)> {
        let embeddings = options.embeddings || gives_embeddings(path.as_deref())?;
        let options = LoadOptions { embeddings, ..options };
        let watch = Watch::new(progress);
        let guesser = self.speculation.open(path.as_deref(), &options)?;
        let model = LoadedModel::open(path.as_deref(), &options)?;
        drop(watch);
        let speculation = self.speculation.for_model(guesser, &model)?;
        Ok((model, speculation, !embeddings))
    }

    /// Describes the address and the limits of the only model.
    fn announcement(&self, name: &str, model: &LoadedModel, local: SocketAddr) -> String {
        let parallel = count_text(self.parallel.into(), "request");
        let (threads, context) = (count_text(model.threads() as u64, "thread"), self.context_words(model));
        format!("ixc: {name} on http://{local}, {parallel} at once in {context}, {threads}")
    }

    /// Returns several models, which are loaded at their first requests, and prints their names.
    fn registry(
        &self,
        sources: Vec<ModelSource>,
        options: LoadOptions,
        serving_options: serving::ServingOptions,
        local: SocketAddr,
    ) -> anyhow::Result<Registry> {
        if let Some(folder) = &self.prompt_cache {
            private_folder(folder).map_err(ixc_error::Error::io(folder, "keep prompts in"))?;
        }
        let names = sources.iter().map(|source| &*source.name).collect::<Vec<_>>().join(", ");
        let models = Registry::several(sources, options, serving_options);
        let memory = models.total().map_or_else(String::new, |total| format!(", {} for all", Bytes(total)));
        let parallel = count_text(self.parallel.into(), "request");
        note!("ixc: {names} on http://{local}, {parallel} at once of each{memory}");
        self.point_browsers(local);
        Ok(models)
    }

    /// Describes the context of a model and the reason for its length.
    fn context_words(&self, model: &LoadedModel) -> String {
        let (context, most) = (model.context(), model.facts().context);
        match context {
            asked if self.how.has_context() => format!("contexts of {asked} tokens (--ctx)"),
            all if all == most => format!("contexts of {all} tokens (the model's maximum)"),
            part => {
                format!(
                    "contexts of {part} tokens (limited by memory; the model's maximum is {most}; --ctx sets another length)"
                )
            }
        }
    }

    /// Prints the address of the web page for browsers.
    fn point_browsers(&self, local: SocketAddr) {
        match local.ip().is_unspecified() {
            true => note!("ixc: open http://localhost:{} in a browser to chat", local.port()),
            false => note!("ixc: open http://{local} in a browser to chat"),
        }
    }

    /// Returns the options that help against errors of requests.
    fn advice(&self) -> BTreeMap<Remedy, String> {
        let longer = match self.embeddings || self.drop_turns {
            true => "start the server with a larger context (-c, --ctx)",
            false => {
                "start the server with a larger context (-c, --ctx), or with --drop-turns to drop old turns of long conversations"
            }
        };
        let others = [Remedy::ServeEmbeddings, Remedy::AllowHost, Remedy::AllowOrigin, Remedy::SlotFolder];
        let others = others.map(|remedy| (remedy, hints::of_remedy(remedy)));
        others.into_iter().chain([(Remedy::LargerContext, longer.to_owned())]).collect()
    }

    /// Returns defaults for fields that requests leave out.
    fn defaults(&self) -> Map<String, Value> {
        let mut fields = self.sampling.fields();
        if let Some(tokens) = self.tokens {
            fields.insert("n_predict".to_owned(), tokens.into());
        }
        if !self.sampling.stop.is_empty() {
            // OpenAI's and Anthropic's APIs have different names for stop strings.
            for name in ["stop", "stop_sequences"] {
                fields.insert(name.to_owned(), self.sampling.stop.clone().into());
            }
        }
        fields
    }

    /// Returns the models, at least one, with different names.
    fn sources(&self) -> anyhow::Result<Vec<ModelSource>> {
        let mut paths: Vec<Option<PathBuf>> = Vec::new();
        if self.model.is_given() || self.models_dir.is_none() {
            paths.push(self.model.path().map(Path::to_owned));
        }
        paths.extend(self.more.iter().map(|name| name.path().map(Path::to_owned)));
        if let Some(folder) = &self.models_dir {
            let found = models_of(folder).map_err(ixc_error::Error::io(folder, "look for models in"))?;
            if found.is_empty() {
                return Err(BadInput(format!(
                    "{} has no models; expected files whose names end with .gguf or .ixp",
                    folder.display()
                ))
                .into());
            }
            paths.extend(found.into_iter().map(Some));
        }
        if paths.len() > 1 {
            let of_one = [
                ("--alias", self.alias.is_some()),
                ("--model", self.model.file().is_some()),
                ("--spec", self.speculation.is_on()),
                ("--expert-stats", self.experts.writes()),
                ("--pin-experts", self.experts.reads()),
            ];
            for (option, is_given) in of_one {
                if is_given {
                    return Err(
                        Usage(format!("{option} works with one model only; {} models are given", paths.len())).into()
                    );
                }
            }
        }
        let mut sources: Vec<ModelSource> = Vec::new();
        for path in paths {
            if let Some(path) = &path {
                std::fs::metadata(path).map_err(ixc_error::Error::io(path, "open"))?;
            }
            let name = self.alias.clone().unwrap_or_else(|| name_of(path.as_deref()));
            if sources.iter().any(|source| source.name == name) {
                return Err(Usage(format!("two models have the name {name}; rename one of the files")).into());
            }
            sources.push(ModelSource { name, path });
        }
        Ok(sources)
    }

    /// Returns the addresses to listen on. IPv4 comes first: clients that resolve a host name try
    /// both kinds, and clients with a fixed address mostly use IPv4.
    fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let name = self.host.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&self.host);
        let found = (name, self.port).to_socket_addrs();
        let wrong = |why: String| Usage(format!("--host {}: cannot find the address of this name: {why}", self.host));
        let mut found: Vec<SocketAddr> = found.map_err(|error| wrong(error.to_string()))?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        if found.is_empty() { Err(wrong("the name has no address".to_owned()).into()) } else { Ok(found) }
    }

    /// Returns the options of the prompt cache, or `None` without a prompt cache.
    fn prompts(&self) -> Option<prompt_cache::PromptCacheOptions> {
        let memory = self.prompt_cache_memory.map(|Size(bytes)| bytes);
        let folder = self.prompt_cache.clone();
        let memory = memory.unwrap_or(if folder.is_some() { MEMORY_BYTES } else { 0 });
        let folder_bytes = self.prompt_cache_size.map_or(FOLDER_BYTES, |Size(bytes)| bytes);
        (folder.is_some() || memory > 0).then_some(prompt_cache::PromptCacheOptions { folder, folder_bytes, memory })
    }
}

/// Makes the next signal end the server in place of the program. The signal after it ends the
/// program.
fn end_on_signal() -> oneshot::Receiver<()> {
    let (end, ended) = oneshot::channel();
    interrupt::on_next(move || {
        note!("ixc: the server ends after running requests; Ctrl-C again ends it at once");
        let _ = end.send(());
    });
    ended
}
