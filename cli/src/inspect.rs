//! `ixc inspect`: contents of a model file, and whether it can be compiled.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use ixc_architectures::{ArchError, Hyper, Nextn, Parts};
use ixc_compile::bytes_per_token::Traffic;
use ixc_compile::model::Input;
use ixc_compile::support::Support;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_model_files::gguf::{self, Gguf, GgufError, TensorType, VocabularyError};
use ixc_runtime::file::of_file;
use ixc_runtime::load;
use ixc_text::tokenizer::{ModelKind, Tokenizer, TokenizerError};
use serde::Serialize;

use super::inspect_page::PageChoice;
use super::inspect_plan::PlanFacts;
use super::model_args::ModelArgument;
use super::output::{self, Bytes, Count, Printable, count_text, note};
use super::{hints, terminal};

/// Shows the contents of a model or plan: architecture, tensors, formats, tokenizer, and whether
/// each is supported.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc inspect model.gguf
  ixc inspect model.gguf --tensors
  ixc inspect plan.ixp
  ixc inspect --support                supported formats and models
  ixc inspect model.gguf --json | jq .formats
  ixc inspect model.gguf --html model.html
                                       graph, passes, memory, kernels
  ixc inspect model.gguf --html model.html --trace trace.json
                                       with measured times

A valid file that is not supported is shown with the reasons; the exit status is 0. A file with \
contradictory keys or tensors, or a plan that loading refuses, is shown up to the error; the exit \
status is 65.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print what this build supports instead: architectures, formats with their kernels on each
    /// target, and tokenizers.
    #[arg(long, conflicts_with_all = ["model", "model_option", "tensors", "html"])]
    support: bool,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
    #[command(flatten)]
    page: PageChoice,
}

/// Min columns of a terminal for the kernels of each format and target.
const WIDE: usize = 1000;

/// Schema of `--json`, for models and plans.
const SCHEMA: &str = "ixc.inspect.v1";

/// Facts about a model file.
#[derive(Serialize)]
struct FileReport {
    kind: &'static str,
    path: String,
    files: usize,
    gguf_version: u32,
    file_bytes: u64,
    name: Option<String>,
    architecture: Option<String>,
    parameters: u64,
    context_length: Option<u64>,
    embedding_length: Option<u64>,
    layers: Option<usize>,
    experts: Option<u64>,
    experts_used: Option<u64>,
    /// The model's own draft layers, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    nextn: Option<NextnFacts>,
    vocabulary: Option<u64>,
    /// Min bytes that a token of decode reads.
    read_per_token: Option<Traffic>,
    tokenizer: TokenizerFacts,
    formats: Vec<FormatFacts>,
    tensor_count: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<TensorFacts>,
    supported: bool,
    problems: Vec<String>,
}

/// Facts about the model's own draft layers.
#[derive(Serialize)]
struct NextnFacts {
    layers: u64,
    /// Reason why the layers cannot be used.
    problem: Option<String>,
}

impl NextnFacts {
    fn from_gguf(gguf: &Gguf, hyper: &Hyper) -> Option<NextnFacts> {
        if hyper.draft_layers == 0 {
            return None;
        }
        let parts = Parts { nextn: Nextn::Alone, ..Parts::ALL };
        let problem = ixc_architectures::build_parts(gguf, parts).err().map(|error| match error {
            ArchError::Nextn { problem, .. } => problem.to_string(),
            other => other.to_string(),
        });
        Some(NextnFacts { layers: hyper.draft_layers, problem })
    }
}

#[derive(Serialize)]
struct TokenizerFacts {
    model: Option<String>,
    pre_tokenizer: Option<String>,
    tokens: Option<usize>,
    chat_template: bool,
    supported: bool,
}

#[derive(Serialize)]
struct FormatFacts {
    format: &'static str,
    tensors: usize,
    parameters: u64,
    bytes: u64,
    supported: bool,
}

#[derive(Serialize)]
struct TensorFacts {
    name: String,
    format: &'static str,
    /// Dimensions with the row length first, as in the file.
    dims: Vec<u64>,
    file: usize,
    offset: u64,
    bytes: u64,
}

/// Reason that a model cannot be compiled.
struct Problem {
    reason: String,
    /// Set if the file contradicts itself, rather than using something unsupported.
    broken: Option<ixc_error::Error>,
}

impl Problem {
    fn of_model(error: ArchError) -> Problem {
        let hint = error.remedy().map_or_else(String::new, |remedy| format!("; {}", hints::of_remedy(remedy)));
        let reason = error.to_string() + &hint;
        let broken = match &error {
            ArchError::Gguf(error) => is_contradiction(error),
            ArchError::TableType { .. }
            | ArchError::TableId { .. }
            | ArchError::Shape { .. }
            | ArchError::Scalar { .. }
            | ArchError::Graph { .. } => true,
            ArchError::UnknownArchitecture { .. }
            | ArchError::VectorType { .. }
            | ArchError::UnusedTensor { .. }
            | ArchError::NotCausal { .. }
            | ArchError::Nextn { .. } => false,
        };
        Problem { reason, broken: broken.then(|| error.into()) }
    }

    fn of_vocabulary(error: VocabularyError) -> Problem {
        let reason = error.to_string();
        let broken = match &error {
            VocabularyError::Metadata(error) => is_contradiction(error),
            VocabularyError::Tokenizer(TokenizerError::Invalid { .. } | TokenizerError::RowsMismatch { .. }) => true,
            VocabularyError::Tokenizer(
                TokenizerError::NoVocabulary
                | TokenizerError::UnknownPreTokenizer { .. }
                | TokenizerError::NoTokenForByte { .. }
                | TokenizerError::TextTooLong { .. }
                | TokenizerError::UnknownId { .. },
            ) => false,
        };
        Problem { reason, broken: broken.then(|| error.into()) }
    }
}

/// Returns whether the error means an inconsistent file, rather than an unsupported one.
fn is_contradiction(error: &GgufError) -> bool {
    match error {
        GgufError::Malformed { .. }
        | GgufError::CutShort { .. }
        | GgufError::KeyType { .. }
        | GgufError::KeyValue { .. } => true,
        GgufError::Io { .. }
        | GgufError::NotAFile { .. }
        | GgufError::NotModel { .. }
        | GgufError::Foreign { .. }
        | GgufError::MissingShard { .. }
        | GgufError::KeyMissing { .. }
        | GgufError::TensorMissing { .. }
        | GgufError::UnsupportedType { .. } => false,
    }
}

impl Args {
    /// Writes the contents of a plan.
    fn show_plan(&self, path: &Path, plan: &Plan<Kernel>, out: &mut dyn Write) -> anyhow::Result<()> {
        let refused = load::verify(plan).err();
        let facts = PlanFacts::new(path, plan, refused.as_ref())?;
        if self.json {
            output::json(out, SCHEMA, &facts)?;
        } else {
            facts.show(out)?;
        }
        refused.map_or(Ok(()), |error| Err(ixc_error::Error::from(error).into()))
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        if self.page.is_asked_for()? {
            return self.page.run(&self.model, out);
        }
        if self.support {
            let support = Support::here();
            match self.json {
                true => output::json(out, "ixc.support.v1", &support)?,
                false => match terminal::output_width().is_some_and(|width| width < WIDE) {
                    false => out.write_all(support.markdown().as_bytes())?,
                    true => {
                        out.write_all(support.markdown_without_kernels().as_bytes())?;
                        note!("ixc: `ixc inspect --support | less -S` also shows the kernels of each target");
                    }
                },
            }
            return Ok(());
        }
        let gguf = match self.model.path() {
            Some(path) => match Input::open(path)? {
                Input::Plan(file) => {
                    let plan = of_file(file, path).map_err(ixc_error::Error::from)?.plan;
                    return self.show_plan(path, &plan, out);
                }
                Input::Model(gguf) => *gguf,
            },
            None => ixc_compile::demo::open()?,
        };
        let mut problems = Vec::new();
        let mut traffic = None;
        let hyper = match ixc_architectures::build_to_see(&gguf) {
            Ok(model) => {
                traffic = Some(Traffic::from_module(&model.module));
                Some(model.hyper)
            }
            Err(error) => {
                problems.push(Problem::of_model(error));
                None
            }
        };
        let tokenizer = tokenizer(&gguf, hyper.as_ref(), &mut problems);
        let mut facts = facts(&gguf, hyper.as_ref(), tokenizer, &problems);
        facts.read_per_token = traffic;
        if self.json {
            if !self.tensors {
                facts.tensors.clear();
            }
            output::json(out, SCHEMA, &facts)?;
        } else {
            show(out, &facts, self.tensors)?;
        }
        match problems.iter_mut().find_map(|problem| problem.broken.take()) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

fn tokenizer(gguf: &Gguf, hyper: Option<&Hyper>, problems: &mut Vec<Problem>) -> TokenizerFacts {
    let text = |key| gguf.metadata().read_optional::<&str>(key).ok().flatten().map(str::to_owned);
    let mut facts = TokenizerFacts {
        model: text("tokenizer.ggml.model"),
        pre_tokenizer: text("tokenizer.ggml.pre"),
        tokens: None,
        chat_template: gguf.metadata().get("tokenizer.chat_template").is_some(),
        supported: false,
    };
    let built = gguf::read_vocabulary(gguf.metadata()).and_then(|spec| {
        facts.tokens = (spec.model != ModelKind::None).then_some(spec.tokens.len());
        if let (Some(hyper), true) = (hyper, spec.model != ModelKind::None) {
            spec.check_embedding_rows(hyper.vocabulary)?;
        }
        Ok(Tokenizer::new(&spec)?)
    });
    match built {
        Ok(_) => facts.supported = true,
        // A model without a vocabulary runs on token ids.
        Err(VocabularyError::Tokenizer(TokenizerError::NoVocabulary)) => {}
        Err(error) => problems.push(Problem::of_vocabulary(error)),
    }
    facts
}

fn facts(gguf: &Gguf, hyper: Option<&Hyper>, tokenizer: TokenizerFacts, problems: &[Problem]) -> FileReport {
    let text = |key| gguf.metadata().read_optional::<&str>(key).ok().flatten().map(str::to_owned);
    let mut formats: BTreeMap<&str, FormatFacts> = BTreeMap::new();
    let mut problems: Vec<String> = problems.iter().map(|problem| problem.reason.clone()).collect();
    for tensor in gguf.tensors() {
        let TensorType { name, .. } = tensor.tensor_type();
        // If the model's graph was built, all of its tensors are supported, including tables of
        // integers.
        let supported = tensor.tensor_type().format().is_some() || hyper.is_some();
        let entry = FormatFacts { format: name, tensors: 0, parameters: 0, bytes: 0, supported };
        let entry = formats.entry(name).or_insert(entry);
        entry.tensors += 1;
        entry.parameters = entry.parameters.saturating_add(tensor.elements());
        entry.bytes = entry.bytes.saturating_add(tensor.bytes());
    }
    for format in formats.values().filter(|format| !format.supported) {
        let example = gguf.tensors().find(|tensor| tensor.tensor_type().name == format.format);
        let example = example.map(|tensor| tensor.name()).unwrap_or_default();
        problems.push(format!(
            "tensor type {} is not supported; the model has {} of it, such as \"{example}\"",
            format.format,
            count_text(format.tensors as u64, "tensor")
        ));
    }
    let experts = hyper.and_then(|hyper| hyper.layers.iter().find_map(|layer| layer.experts.as_ref()));
    let mut formats: Vec<FormatFacts> = formats.into_values().collect();
    formats.sort_by_key(|format| std::cmp::Reverse(format.bytes));
    FileReport {
        kind: "model",
        path: gguf.metadata().path().display().to_string(),
        files: gguf.files().len(),
        gguf_version: gguf.files().first().map_or(0, |file| file.version()),
        file_bytes: gguf.files().iter().map(|file| file.data().len() as u64).sum(),
        name: text("general.name"),
        architecture: text("general.architecture"),
        parameters: gguf.tensors().fold(0, |sum, tensor| sum.saturating_add(tensor.elements())),
        context_length: hyper.map(|hyper| hyper.context_length),
        embedding_length: hyper.map(|hyper| hyper.embedding_length),
        layers: hyper.map(|hyper| hyper.layers.len()),
        experts: experts.map(|experts| experts.count),
        experts_used: experts.map(|experts| experts.used),
        nextn: hyper.and_then(|hyper| NextnFacts::from_gguf(gguf, hyper)),
        vocabulary: hyper.map(|hyper| hyper.vocabulary),
        read_per_token: None,
        tokenizer,
        formats,
        tensor_count: gguf.tensors().len(),
        tensors: gguf
            .tensors()
            .map(|tensor| TensorFacts {
                name: tensor.name().to_owned(),
                format: tensor.tensor_type().name,
                dims: tensor.dims().to_vec(),
                file: tensor.file(),
                offset: tensor.offset(),
                bytes: tensor.bytes(),
            })
            .collect(),
        supported: problems.is_empty(),
        problems,
    }
}

fn show(out: &mut dyn Write, facts: &FileReport, tensors: bool) -> std::io::Result<()> {
    let files = if facts.files > 1 { format!(" in {}", count_text(facts.files as u64, "file")) } else { String::new() };
    let kind = match facts.gguf_version {
        0 => "safetensors".to_owned(),
        version => format!("GGUF v{version}"),
    };
    writeln!(out, "file          {} ({kind}, {}{files})", Printable(&facts.path), Bytes(facts.file_bytes))?;
    if let Some(name) = &facts.name {
        writeln!(out, "name          {}", Printable(name))?;
    }
    writeln!(out, "architecture  {}", Printable(facts.architecture.as_deref().unwrap_or("(none)")))?;
    writeln!(out, "parameters    {}", Count(facts.parameters))?;
    if let (Some(layers), Some(width), Some(context), Some(vocabulary)) =
        (facts.layers, facts.embedding_length, facts.context_length, facts.vocabulary)
    {
        let layers = count_text(layers as u64, "layer");
        writeln!(out, "shape         {layers}, width {width}, vocabulary {vocabulary}, context {context}")?;
    }
    if let (Some(count), Some(used)) = (facts.experts, facts.experts_used) {
        writeln!(out, "experts       {count}, {used} used by each token")?;
    }
    if let Some(NextnFacts { layers, problem }) = &facts.nextn {
        match problem {
            None => writeln!(out, "draft layers  {layers}, used with --spec nextn")?,
            Some(problem) => writeln!(out, "draft layers  {layers}, not supported: {}", Printable(problem))?,
        }
    }
    if let Some(Traffic { weights, cache_per_position }) = facts.read_per_token {
        let (weights, position) = (Bytes(weights), Bytes(cache_per_position));
        writeln!(out, "token reads   {weights} of weights, {position} of KV cache for each earlier position")?;
    }
    let tokenizer = &facts.tokenizer;
    write!(out, "tokenizer     {}", Printable(tokenizer.model.as_deref().unwrap_or("(none)")))?;
    if let Some(pre) = &tokenizer.pre_tokenizer {
        write!(out, ", pre-tokenizer {}", Printable(pre))?;
    }
    if let Some(tokens) = tokenizer.tokens {
        write!(out, ", {}", count_text(tokens as u64, "token"))?;
    }
    writeln!(out, "{}", if tokenizer.chat_template { ", chat template" } else { "" })?;
    for format in &facts.formats {
        let unsupported = if format.supported { "" } else { "  not supported" };
        let (name, count, size) = (format.format, format.tensors, Bytes(format.bytes).to_string());
        let noun = if count == 1 { "tensor " } else { "tensors" };
        writeln!(out, "format        {name:<8} {count:>5} {noun}  {size:>10}{unsupported}")?;
    }
    if tensors {
        show_tensors(out, facts)?;
    }
    writeln!(out, "supported     {}", if facts.supported { "yes" } else { "no" })?;
    facts.problems.iter().try_for_each(|problem| writeln!(out, "  because     {}", Printable(problem)))
}

/// Writes one line per tensor: name, format, dimensions, size and offset in the file. If the model
/// has several files, the file's number precedes the offset.
fn show_tensors(out: &mut dyn Write, facts: &FileReport) -> std::io::Result<()> {
    let names: Vec<String> = facts.tensors.iter().map(|tensor| Printable(&tensor.name).to_string()).collect();
    let name_width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let format_width = facts.tensors.iter().map(|tensor| tensor.format.len()).max().unwrap_or_default();
    for (tensor, name) in facts.tensors.iter().zip(&names) {
        let file = if facts.files > 1 { format!("{}:", tensor.file) } else { String::new() };
        let size = Bytes(tensor.bytes).to_string();
        writeln!(
            out,
            "tensor        {name:<name_width$} {:<format_width$} {:?} {size} at {file}{:#x}",
            tensor.format, tensor.dims, tensor.offset
        )?;
    }
    Ok(())
}
