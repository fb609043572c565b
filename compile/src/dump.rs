//! Stages of a model's compilation as a folder of files, and compilation that starts from one of
//! them.
//!
//! ```text
//! d/manifest.json            what made it: version, target, features, model files, passes
//! d/00-frontend.ix           the graph as the model file describes it
//! d/04-fuse.ix               a pass that changed something, in the order of `ixc opt`
//! d/10-lower.ix              tasks, as JSON behind the line that names the pass
//! d/12-arena.ix              the plan, with specs in place of kernels
//! d/index.json               which kernels compute which op
//! d/kernels/NAME.ix          a kernel's IR, with its spec
//! d/kernels/NAME.s           its code as assemblers take it; cranelift's listing for `portable`
//! d/kernels/NAME.bin         its code, and the constants behind it
//! ```
//!
//! A file with a number is a starting point of compilation ([`read_stop`]). Files of kernels can
//! replace generated ones ([`Replacements`](crate::replacements::Replacements)). The folder
//! contains no weights.

use std::path::Path;

use ixc_codegen::module::Artifact;
use ixc_codegen::parallel;
use ixc_files::folder::NewFolder;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Output, Plan, Step, Variant};
use ixc_kernels::{KernelSpec, generate};
use ixc_passes::manager::{Ir, PASSES, Stop, StopError, TextError};
use ixc_targets::Target;
use serde_json::{Value as Json, json};

use crate::Error;
use crate::compile::{Options, passes_left};
use crate::excerpt::Excerpt;
use crate::model::Model;
use crate::replacements::SPEC;

/// The manifest's format and version.
const FORMAT: &str = "ixc-dump";
const VERSION: u32 = 1;
/// Max size of a starting point: a plan's tokenizer alone may have 20 MB.
const MOST_BYTES: u64 = 256 << 20;

/// Reads a starting point of compilation.
///
/// # Errors
/// When the file cannot be read, is not IR, or does not name the pass before it.
pub fn read_stop(path: &Path) -> Result<Stop, Error> {
    let text = ixc_files::read_argument(path, MOST_BYTES)?;
    Stop::parse(&text).map_err(|error| match error {
        StopError::Text(TextError::Graph(error)) => {
            Error::StopText(Box::new(Excerpt::new(path, &text, error.line, error.column, &error.problem)))
        }
        source => Error::Stop { path: path.to_owned(), source: Box::new(source) },
    })
}

/// A pass that ran.
struct Ran {
    name: &'static str,
    changed: bool,
    file: Option<String>,
}

/// Writes the stages of a model's compilation into a new folder, completely or up to a pass.
/// Returns the number of files.
///
/// # Errors
/// See [`compile`](crate::compile::compile); the stages before the error are written all the
/// same. Also when the system fails.
pub fn write(
    mut folder: NewFolder,
    model: &Model,
    options: &Options,
    last: Option<&'static str>,
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
    let (mut ran, mut texts): (Vec<Ran>, Vec<(String, String)>) = Default::default();
    let end = last.or(PASSES.last().map(|pass| pass.name));
    let left = passes_left(model, options, end, &mut |pass, ir, changed| {
        let file = changed.then(|| file_of(Some(pass.name)));
        if let Some(file) = &file {
            texts.push((file.clone(), Stop::text_of(ir, Some(pass.name))));
        }
        ran.push(Ran { name: pass.name, changed, file });
    });
    for (name, text) in texts {
        put(&folder, &name, text.as_bytes())?;
    }
    let (failed, plan) = match left {
        Ok(Ir::Plan(plan)) => (None, Some(*plan)),
        Ok(Ir::Graph(_) | Ir::Draft(_)) => (None, None),
        Err(error) => (Some(error), None),
    };
    if let Some(plan) = &plan {
        let target = options.target();
        let mut generated = plan.clone().try_map_kernels(|spec| generate(&spec, target))?;
        let replaced = options.kernels.put_into(&mut generated)?;
        put(&folder, "index.json", &pretty(&index(&generated)))?;
        folder.folder("kernels")?;
        for (name, text, listing, code) in kernels(plan, &generated, &replaced, target)? {
            put(&folder, &format!("kernels/{name}.ix"), text.as_bytes())?;
            put(&folder, &format!("kernels/{name}.s"), listing.as_bytes())?;
            put(&folder, &format!("kernels/{name}.bin"), &code)?;
        }
    }
    let manifest = manifest(model, options, after, &ran, failed.as_ref(), plan.as_ref());
    put(&folder, "manifest.json", &pretty(&manifest))?;
    folder.finish()?;
    failed.map_or(Ok(files), Err)
}

/// Returns the file name for the result of a pass; names sort in the order of passes.
fn file_of(pass: Option<&str>) -> String {
    let at = pass.and_then(|name| PASSES.iter().position(|pass| pass.name == name));
    format!("{:02}-{}.ix", at.map_or(0, |at| at + 1), pass.unwrap_or("frontend"))
}

fn pretty(json: &Json) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

/// Name, IR with its spec, listing and code of a kernel.
type Texts = (String, String, String, Vec<u8>);

fn kernels(
    specs: &Plan<KernelSpec>,
    plan: &Plan<Kernel>,
    replaced: &[String],
    target: Target,
) -> Result<Vec<Texts>, Error> {
    let each = |(spec, kernel): &(&KernelSpec, &Kernel)| {
        let artifact = Artifact::of(kernel, target, true)?;
        let edited = if replaced.contains(&kernel.name) { ", edited" } else { "" };
        let text = format!("; {} for {}{edited}\n;{SPEC}{spec}\n{kernel}", kernel.name, target.name());
        Ok((kernel.name.clone(), text, artifact.listing(kernel, 0), artifact.bytes().concat()))
    };
    let pairs: Vec<_> = specs.kernels.iter().zip(&plan.kernels).collect();
    parallel::map(&pairs, each).into_iter().collect()
}

/// Returns an index of the kernels: for each task its step, op, weight, and kernels by rows.
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

fn manifest(
    model: &Model,
    options: &Options,
    start: Option<&str>,
    ran: &[Ran],
    failed: Option<&Error>,
    plan: Option<&Plan<KernelSpec>>,
) -> Json {
    let target = options.target();
    let files: Vec<Json> = (model.gguf.files().iter())
        .map(|file| {
            let identity = file.identity();
            let crc = format!("{:08x}", identity.header_crc);
            json!({ "path": identity.path, "bytes": identity.bytes, "header_crc32": crc })
        })
        .collect();
    let passes: Vec<Json> =
        ran.iter().map(|pass| json!({ "name": pass.name, "changed": pass.changed, "file": pass.file })).collect();
    json!({
        "format": FORMAT,
        "version": VERSION,
        "ixc": env!("CARGO_PKG_VERSION"),
        "target": target.name(),
        "features": target.features().iter().map(|feature| feature.name()).collect::<Vec<_>>(),
        "model": { "architecture": model.arch.hyper.architecture, "files": files },
        "start": file_of(start),
        "passes": passes,
        "kernels": plan.map(|plan| plan.kernels.len()),
        "failed": failed.map(ToString::to_string),
    })
}
