//! `ixc quantise`: converts the matrices of a GGUF file to other formats.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ixc_compile::error::replacement::some;
use ixc_files::{Kind, Output};
use ixc_ir::format::Format;
use ixc_model_files::gguf::ShardFile;
use ixc_quantise::importance::Importance;
use ixc_quantise::mix::{MIXES, Mix};
use ixc_quantise::{Plan, QuantiseOptions, plan};
use serde::Serialize;

use super::force::{Force, reads};
use super::model_args::ModelArgument;
use super::output::{Bytes, Line, Printable, Rate, Unit, count_text, json, note};

/// A model file.
const KIND: Kind = Kind { name: "GGUF file", is: |head| head.starts_with(b"GGUF"), streams: false, private: false };

/// Max number of threads, the same as for an engine.
const MAX_THREADS: i64 = ixc_runtime::pool::MAX_THREADS as i64;

/// Quantises a model: writes it with its matrices in other formats.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:
  ixc quantise model-f16.gguf Q4_K_M             writes model-f16-Q4_K_M.gguf
  ixc quantise model-bf16.gguf IQ4_XS -o small.gguf --imatrix i.gguf
  ixc quantise model-f16.gguf Q4_K_M --tensor 'blk.*.ffn_down_exps*=q6_k'
  ixc quantise model-f16.gguf Q4_K_M --dry-run   prints each tensor's format
  ixc eval model-f16-Q4_K_M.gguf --text sample.txt --against model-f16.gguf
                                                 measures the loss

Mixes have the names and rules of llama-quantize, and llama.cpp reads the result. Vectors, routers \
and small matrices keep their format. Rows that are not a multiple of a format's block get a \
format with shorter blocks.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgument,
    /// Mix of formats, such as Q4_K_M: it gives each matrix its format.
    #[arg(value_name = "MIX", value_parser = read_mix)]
    mix: &'static Mix,
    /// File to write [default: the model's name, a hyphen and the mix, in the current folder].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Importance matrix from llama-imatrix or `ixc eval --imatrix`. Errors count more in columns
    /// with large inputs.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Another format for matrices whose names match; repeatable, the last match wins. Vectors,
    /// routers and small matrices keep their format.
    #[arg(long = "tensor", alias = "tensor-type", value_name = "PATTERN=FORMAT", value_parser = read_override)]
    overrides: Vec<(String, Format)>,
    /// Use the mix's main format for all matrices.
    #[arg(long)]
    pure: bool,
    /// Quantise matrices that are already quantised. Their errors add up.
    #[arg(long)]
    allow_requantize: bool,
    /// Print the format of each tensor, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Number of threads [default: one per core].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS))]
    threads: Option<u16>,
    #[command(flatten)]
    force: Force,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn read_mix(name: &str) -> Result<&'static Mix, String> {
    let names = || MIXES.iter().map(|mix| mix.name).collect::<Vec<_>>().join(", ");
    Mix::find(name).ok_or_else(|| format!("expected one of {}", names()))
}

fn read_override(text: &str) -> Result<(String, Format), String> {
    let formats = || Format::encoded_formats().map(Format::name).collect::<Vec<_>>().join(", ");
    let format = |name: &str| Format::from_name(&name.to_ascii_lowercase()).filter(|format| format.encodes());
    let found = text.rsplit_once('=').and_then(|(pattern, name)| Some((pattern.to_owned(), format(name)?)));
    found.ok_or_else(|| format!("expected PATTERN=FORMAT with one of {}", formats()))
}

/// Output as JSON.
#[derive(Serialize)]
struct Report<'f> {
    mix: &'static str,
    output: Option<&'f Path>,
    bytes_before: u64,
    bytes: u64,
    quantised: usize,
    tensors: Vec<Row<'f>>,
    seconds: f64,
}

/// A row of the report: one tensor.
#[derive(Serialize)]
struct Row<'f> {
    name: &'f str,
    dims: &'f [u64],
    from: String,
    to: String,
}

fn rows<'p>(plan: &'p Plan<'_>) -> Vec<Row<'p>> {
    let row = |planned: &'p ixc_quantise::TensorPlan<'_>| Row {
        name: planned.tensor.name(),
        dims: planned.tensor.dims(),
        from: planned.tensor.tensor_type().to_string(),
        to: planned.tensor_type().to_string(),
    };
    plan.tensors.iter().map(row).collect()
}

impl Args {
    fn path(&self) -> PathBuf {
        let stem = self.model.path().and_then(Path::file_stem).unwrap_or("demo".as_ref()).to_string_lossy();
        self.output.clone().unwrap_or_else(|| format!("{stem}-{}.gguf", self.mix.name).into())
    }

    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        let begin = Instant::now();
        let path = self.path();
        let inputs: Vec<&Path> = self.model.path().into_iter().chain(self.imatrix.as_deref()).collect();
        // Open the output before the work, which would otherwise be lost.
        let mut output = match self.dry_run {
            true => None,
            false => Some(self.force.open(&path, &KIND, &inputs)?),
        };
        let model = match self.model.path() {
            Some(path) => ixc_compile::model::open_files(path)?,
            None => ixc_compile::demo::open()?,
        };
        if let Some(output) = &mut output {
            reads(output, model.files().iter().map(ShardFile::path))?;
        }
        let importance = self.imatrix.as_deref().map(Importance::read).transpose().map_err(quantise_error)?;
        let options = QuantiseOptions {
            mix: self.mix,
            overrides: self.overrides.clone(),
            pure: self.pure,
            importance: importance.as_ref(),
            requantise: self.allow_requantize,
        };
        let plan = plan(&model, &options).map_err(quantise_error)?;
        note_missing_importance(&plan, importance.as_ref());
        let bytes_before: u64 = model.tensors().map(|tensor| tensor.bytes()).sum();
        let output = match output {
            Some(output) => {
                self.write_model(&plan, output, begin)?;
                Some(&*path)
            }
            None => None,
        };
        let report = Report {
            mix: self.mix.name,
            output,
            bytes_before,
            bytes: plan.bytes(),
            quantised: plan.quantised_tensors(),
            tensors: rows(&plan),
            seconds: begin.elapsed().as_secs_f64(),
        };
        if self.json {
            return Ok(json(out, "ixc.quantise.v1", &report)?);
        }
        if self.dry_run {
            report.write_tensors(out)?;
        }
        report.write_summary(out)?;
        let shorter = plan.tensors.iter().filter(|planned| planned.shorter).count() as u64;
        if shorter > 0 {
            note!(
                "ixc: {} got a format with shorter blocks than the mix's: their rows are not whole blocks of the mix's format",
                count_text(shorter, "tensor")
            );
        }
        Ok(())
    }

    /// Writes the model, and shows the progress.
    fn write_model(&self, plan: &Plan<'_>, output: Output, begin: Instant) -> anyhow::Result<()> {
        let threads = self
            .threads
            .map(usize::from)
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let (mut line, mut rate) = (Line::new(begin), Rate::default());
        let bytes = plan.write(output, threads, |progress| {
            let ixc_quantise::Progress { tensor, done, total } = progress;
            let rate = rate.at(Instant::now(), done, total, Unit::Bytes);
            let (done, total) = (Bytes(done), Bytes(total));
            line.show(format_args!("writing {}: {done} of {total}{rate}", Printable(tensor)));
        });
        line.clear();
        bytes.map_err(quantise_error)?;
        Ok(())
    }
}

impl Report<'_> {
    /// Writes the name, size and formats of each tensor.
    fn write_tensors(&self, out: &mut dyn Write) -> io::Result<()> {
        self.tensors.iter().try_for_each(|row| {
            let to = if row.from == row.to { String::new() } else { format!(" -> {}", row.to) };
            let (name, dims) = (Printable(row.name).to_string(), format!("{:?}", row.dims));
            writeln!(out, "{name:<36} {dims:<22} {}{to}", row.from)
        })
    }

    /// Writes the number of changed tensors, the sizes, and the number of tensors in each format.
    fn write_summary(&self, out: &mut dyn Write) -> io::Result<()> {
        let (quantised, count) = (self.quantised, count_text(self.tensors.len() as u64, "tensor"));
        let (before, after) = (Bytes(self.bytes_before), Bytes(self.bytes));
        match self.output {
            None => writeln!(
                out,
                "nothing is written; quantising would change {quantised} of {count}, {before} -> {after}"
            )?,
            Some(path) => {
                let (name, seconds) = (path.display().to_string(), self.seconds);
                let name = Printable(&name);
                writeln!(out, "{name}: {quantised} of {count} changed, {before} -> {after}, {seconds:.1} s")?;
            }
        }
        let mut formats: BTreeMap<&str, u64> = BTreeMap::new();
        self.tensors.iter().for_each(|row| *formats.entry(&row.to).or_default() += 1);
        let formats: Vec<String> = formats.iter().map(|(format, count)| format!("{count} {format}")).collect();
        writeln!(out, "  {}", formats.join(", "))
    }
}

/// Prints the tensors that the importance matrix lacks, and the number of tensors that lose much
/// without one.
fn note_missing_importance(plan: &Plan<'_>, importance: Option<&Importance>) {
    if let Some(importance) = importance {
        let quantised = plan.tensors.iter().filter(|planned| planned.to.is_some());
        let names = quantised.map(|planned| planned.tensor.name());
        let unknown: Vec<String> = names.filter(|name| !importance.knows(name)).map(str::to_owned).collect();
        if !unknown.is_empty() {
            note!("ixc: the importance matrix has no values for {}", some(&unknown));
        }
    }
    let blind = plan.without_importance() as u64;
    if blind > 0 {
        note!(
            "ixc: no importance matrix for {} in formats of few bits: predictions get worse; `ixc eval --imatrix FILE` makes a matrix",
            count_text(blind, "tensor")
        );
    }
}

fn quantise_error(error: impl Into<ixc_quantise::QuantiseError>) -> ixc_error::Error {
    Box::new(error.into()).into()
}
