//! Dump of a compilation: writes the output of each stage as a file in a folder. Compilation can
//! start from one of these files.
//!
//! ```text
//! d/manifest.json            what made it: version, target, features, model files, passes
//! d/00-frontend.ix           the graph as the model file describes it
//! d/05-fuse.ix               a pass that changed something, in the order of `ixc opt`
//! d/11-lower.ix              tasks, as JSON behind the line that names the pass
//! d/13-arena.ix              the plan, with specs in place of kernels
//! d/index.json               which kernels compute which op
//! d/kernels/NAME.ix          a kernel's IR, with its spec
//! d/kernels/NAME.s           its code as assemblers take it; cranelift's listing for `portable`
//! d/kernels/NAME.bin         its code, and the constants behind it
//! ```
//!
//! Compilation can start from each file whose name begins with a number ([`read_stop`]). Files of
//! kernels can replace generated kernels ([`Replacements`](crate::replacements::Replacements)). The
//! folder contains no weights.

use std::path::Path;

use ixc_codegen::module::Artifact;
use ixc_codegen::parallel;
use ixc_files::folder::NewFolder;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Output, Plan, Step, Variant};
use ixc_kernels::KernelSpec;
use ixc_passes::manager::{Ir, PASSES, Stop, StopError, TextError};
use ixc_targets::Target;
use serde_json::{Value as Json, json};

use crate::Error;
use crate::compile::{Compilation, CompileOptions};
use crate::excerpt::Excerpt;
use crate::model::Model;
use crate::recording::RecordedPass;
use crate::replacements::SPEC;

/// Name of the manifest's format, and its version.
const FORMAT: &str = "ixc-dump";
const VERSION: u32 = 1;
/// Max bytes of a file from which compilation starts. A plan's tokenizer alone may have 20 MB.
const MOST_BYTES: u64 = 256 << 20;

/// Reads a file from which compilation starts.
///
/// # Errors
/// Fails if the file cannot be read or is not IR. Also fails if it has no line `; after PASS` that
/// names the pass that wrote it.
pub fn read_stop(path: &Path) -> Result<Stop, Error> {
    let text = ixc_files::read_argument(path, MOST_BYTES)?;
    Stop::parse(&text).map_err(|error| match error {
        StopError::Text(TextError::Graph(error)) => {
            Error::StopText(Box::new(Excerpt::new(path, &text, error.line, error.column, &error.problem)))
        }
        source => Error::Stop { path: path.to_owned(), source: Box::new(source) },
    })
}

/// Result of a compilation.
#[derive(Clone, Debug)]
pub enum Outcome<'c> {
    /// A plan.
    Plan(&'c Compilation),
    /// No plan: compilation stopped after a pass.
    Stopped,
    /// No plan: compilation failed with this error.
    Failed(String),
}

/// Writes the stages of a model's compilation into a new folder. `passes` are the passes that ran,
/// up to the last stage to write. Returns the number of files.
///
/// # Errors
/// Fails if a kernel has no code, or a file cannot be written.
pub fn write(
    mut folder: NewFolder,
    model: &Model,
    options: &CompileOptions,
    passes: &[RecordedPass],
    outcome: &Outcome<'_>,
) -> Result<usize, Error> {
    let mut files = 0;
    let mut put = |folder: &NewFolder, name: &str, bytes: &[u8]| {
        files += 1;
        folder.put(name, bytes)
    };
    let start = options.start.as_deref();
    let after = start.and_then(|start| start.after);
    let text = start.map_or_else(|| Stop::graph_text(&model.arch.module, None), Stop::text);
    put(&folder, &file_of(after), text.as_bytes())?;
    for RecordedPass { name, text, .. } in passes {
        if let Some(text) = text {
            put(&folder, &file_of(Some(name)), text.as_bytes())?;
        }
    }
    if let Outcome::Plan(Compilation { plan, replaced, .. }) = outcome {
        put(&folder, "index.json", &pretty(&index(plan)))?;
        folder.folder("kernels")?;
        for kernel in kernels(specs(passes, start), plan, replaced, options.target())? {
            let KernelFiles { name, ir, listing, code } = kernel;
            put(&folder, &format!("kernels/{name}.ix"), ir.as_bytes())?;
            put(&folder, &format!("kernels/{name}.s"), listing.as_bytes())?;
            put(&folder, &format!("kernels/{name}.bin"), &code)?;
        }
    }
    put(&folder, "manifest.json", &pretty(&manifest(model, options, passes, outcome)))?;
    folder.finish()?;
    Ok(files)
}

/// Returns the specs of a plan's kernels. They come from the last recorded pass, or from the plan
/// from which compilation started.
fn specs<'p>(passes: &'p [RecordedPass], start: Option<&'p Stop>) -> &'p [KernelSpec] {
    let recorded = passes.last().and_then(|pass| pass.specs.as_deref());
    let of_start = || match &start?.ir {
        Ir::Plan(plan) => Some(&plan.kernels[..]),
        Ir::Graph(_) | Ir::Draft(_) => None,
    };
    recorded.or_else(of_start).unwrap_or_default()
}

/// Returns the file name for the output of a pass. Names sort in the order of passes.
fn file_of(pass: Option<&str>) -> String {
    let at = pass.and_then(|name| PASSES.iter().position(|pass| pass.name == name));
    format!("{:02}-{}.ix", at.map_or(0, |at| at + 1), pass.unwrap_or("frontend"))
}

fn pretty(json: &Json) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

/// Contents of a kernel's files.
struct KernelFiles {
    /// Name of the kernel.
    name: String,
    /// IR of the kernel, with its spec in a comment.
    ir: String,
    listing: String,
    code: Vec<u8>,
}

fn kernels(
    specs: &[KernelSpec],
    plan: &Plan<Kernel>,
    replaced: &[String],
    target: Target,
) -> Result<Vec<KernelFiles>, Error> {
    let each = |(spec, kernel): &(&KernelSpec, &Kernel)| {
        let artifact = Artifact::generate(kernel, target, true)?;
        let edited = if replaced.contains(&kernel.name) { ", edited" } else { "" };
        let ir = format!("; {} for {}{edited}\n;{SPEC}{spec}\n{kernel}", kernel.name, target.name());
        let (listing, code) = (artifact.listing(kernel, 0), artifact.bytes().concat());
        Ok(KernelFiles { name: kernel.name.clone(), ir, listing, code })
    };
    let pairs: Vec<_> = specs.iter().zip(&plan.kernels).collect();
    parallel::map(&pairs, each).into_iter().collect()
}

/// Returns an index of the kernels. For each task, it has the step, op, weight, and the kernels by
/// number of rows.
fn index(plan: &Plan<Kernel>) -> Json {
    let name = |kernel: usize| plan.kernels.get(kernel).map(|kernel| kernel.name.as_str());
    let mut tasks = Vec::new();
    for (number, step) in plan.steps.iter().enumerate() {
        let Step::Run { tasks: these, .. } = step else { continue };
        for task in these {
            let kernel = |variant: &Variant| {
                let number = variant.kernel.0 as usize;
                let own = plan.kernels.get(number).map_or(&[][..], |kernel| &kernel.dims);
                let dims: serde_json::Map<String, Json> = (own.iter().zip(&variant.dims))
                    .map(|(dim, value)| (dim.name.clone(), value.to_string().into()))
                    .collect();
                json!({ "up_to_rows": variant.up_to_rows, "kernel": name(number), "dims": dims })
            };
            let kernels: Vec<Json> = task.variants.iter().map(kernel).collect();
            tasks.push(json!({ "step": number, "op": task.label, "kernels": kernels }));
        }
    }
    let softmax = match plan.output {
        Output::Logits { softmax } => name(softmax.0 as usize),
        Output::Hidden { .. } | Output::Experts { .. } => None,
    };
    json!({ "tasks": tasks, "softmax": softmax })
}

fn manifest(model: &Model, options: &CompileOptions, passes: &[RecordedPass], outcome: &Outcome<'_>) -> Json {
    let (kernels, failed) = match outcome {
        Outcome::Plan(compiled) => (Some(compiled.plan.kernels.len()), None),
        Outcome::Stopped => (None, None),
        Outcome::Failed(error) => (None, Some(error)),
    };
    let start = options.start.as_deref().and_then(|start| start.after);
    let target = options.target();
    let files: Vec<Json> = (model.gguf.files().iter())
        .map(|file| {
            let identity = file.identity();
            let crc = format!("{:08x}", identity.header_crc);
            json!({ "path": identity.path, "bytes": identity.bytes, "header_crc32": crc })
        })
        .collect();
    let pass = |pass: &RecordedPass| {
        let file = pass.text.as_ref().map(|_| file_of(Some(pass.name)));
        json!({ "name": pass.name, "changed": file.is_some(), "file": file })
    };
    json!({
        "format": FORMAT,
        "version": VERSION,
        "ixc": env!("CARGO_PKG_VERSION"),
        "target": target.name(),
        "features": target.features().iter().map(|feature| feature.name()).collect::<Vec<_>>(),
        "model": { "architecture": model.arch.hyper.architecture, "files": files },
        "start": file_of(start),
        "passes": passes.iter().map(pass).collect::<Vec<Json>>(),
        "kernels": kernels,
        "failed": failed,
    })
}
