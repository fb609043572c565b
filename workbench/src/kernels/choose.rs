//! Choice of a kernel: a row's name, a spec's text, a file of kernel IR, or a kernel of a model.
//!
//! ```text
//! gemm_q4_k                                              a row
//! linear format=q4_k k=2048 tile=32 n=2048 shape=gemm    a spec
//! experiment.ix                                          a file, with its spec in `; spec: ...`
//! model.gguf:gemm_q6_k        plan.ixp:attention         a kernel of a model, by part of its name
//! demo:route                                             of the built-in demo model
//! ```
//!
//! Postcondition: the verifier accepts the kernel.

use ixc_kernels::{KINDS, KernelSpec, generate};
use std::path::Path;

use ixc_ir::kernel::Kernel;
use ixc_ir::kernel::verify::verify;
use ixc_ir::plan::Plan;
use ixc_kernels::catalogue::{self, ROWS};
use ixc_targets::Target;

use super::KernelError;
use crate::Error;
use ixc_compile::compile::{CompileOptions, specs};
use ixc_compile::model::{Input, Model};
use ixc_compile::replacements::KernelFile;
use ixc_compile::select::{self, Selection, Use};

/// Name of the built-in demo model, alone or before the colon of `MODEL:NAME`.
const DEMO: &str = "demo";
/// Default number of rows for a kernel that is not in the table.
const DEFAULT_ROWS: u32 = 8;

/// Kernel for a target, with its origin.
#[derive(Clone, Debug)]
pub struct TargetKernel {
    /// Name of the table row, or of the kernel.
    pub name: String,
    /// Spec, if there is one.
    pub spec: Option<KernelSpec>,
    /// Default number of rows.
    pub rows: u32,
    /// Target of the kernel.
    pub target: Target,
    /// Kernel in IR form.
    pub kernel: Kernel,
}

/// Returns the kernel that `text` names.
///
/// # Errors
/// If `text` names no kernel, or the target has no kernel for the spec.
pub fn choose(text: &str, target: Target) -> Result<TargetKernel, Error> {
    let text = text.trim();
    if let Some(row) = catalogue::find(text) {
        return Ok(TargetKernel {
            name: row.name.to_owned(),
            ..from_spec(row.spec().map_err(KernelError::from)?, row.rows, target)?
        });
    }
    let first = text.split_whitespace().next().unwrap_or_default();
    if text.contains('=') || KINDS.iter().any(|kind| kind.word == first) {
        return from_spec(text.parse().map_err(KernelError::from)?, DEFAULT_ROWS, target);
    }
    if text.ends_with(".ix") {
        return from_file(Path::new(text), target);
    }
    if let Some((model, name)) = text.rsplit_once(':') {
        return from_model(model, name, target, &Selection::default());
    }
    if is_model(text) {
        return Err(KernelError::WholeModel { model: text.to_owned() }.into());
    }
    // `text` may also be a kernel's generated name, as in profiles and dumps.
    let named = ROWS.iter().filter_map(|row| row.spec().ok().map(|spec| (row, spec)));
    match named.into_iter().find(|(_, spec)| matches_name(spec, text)) {
        Some((row, spec)) => from_spec(spec, row.rows, target),
        None => {
            let plain = |name: &str| name.replace(['_', '-'], "");
            let text_plain = plain(text);
            let near = ROWS.iter().map(|row| row.name).filter(|name| {
                let name = plain(name);
                name.contains(&text_plain) || text_plain.contains(&name)
            });
            Err(KernelError::Unknown { name: text.to_owned(), near: near.take(8).collect() }.into())
        }
    }
}

/// Returns the kernel of a model or plan that `text` names as `MODEL` or `MODEL:NAME`, among the
/// selected ones. Works like [`choose`] if everything is selected.
///
/// # Errors
/// See [`choose`]; also if nothing is selected, or if several kernels match.
pub fn choose_among(text: &str, target: Target, selection: &Selection) -> Result<TargetKernel, Error> {
    if selection.is_all() {
        return choose(text, target);
    }
    let text = text.trim();
    let first = text.split_whitespace().next().unwrap_or_default();
    if catalogue::find(text).is_some() || text.ends_with(".ix") || KINDS.iter().any(|kind| kind.word == first) {
        return Err(KernelError::InNoModel { name: text.to_owned() }.into());
    }
    let (model, name) = text.rsplit_once(':').unwrap_or((text, ""));
    from_model(model, name, target, selection)
}

/// Returns whether a word alone names a kernel: a row, a kind of spec or a file.
pub fn names_kernel(word: &str) -> bool {
    catalogue::find(word).is_some() || KINDS.iter().any(|kind| kind.word == word) || word.ends_with(".ix")
}

/// Model that a text names, alone or before a kernel's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelName<'t> {
    /// Name of the model.
    model: &'t str,
    /// Name of the kernel; empty if the text names the whole model.
    kernel: &'t str,
    /// Path; `None` for the built-in model.
    pub path: Option<&'t Path>,
    /// Whether the text names the whole model and no kernel of it.
    pub is_whole: bool,
}

impl ModelName<'_> {
    /// Opens the model or plan.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a supported model.
    pub fn open(&self) -> Result<OpenModel, Error> {
        OpenModel::open(self.path)
    }

    /// Returns the named kernel of the open model, among the selected ones.
    ///
    /// # Errors
    /// See [`choose_among`].
    pub fn choose(&self, opened: &OpenModel, target: Target, selection: &Selection) -> Result<TargetKernel, Error> {
        from_open_model(opened, self.model, self.kernel, target, selection)
    }
}

/// Returns the model that `text` names, alone or before a kernel's name. `None` if the text names
/// no model.
pub fn model_name(text: &str) -> Option<ModelName<'_>> {
    let text = text.trim();
    if catalogue::find(text).is_some() || text.contains('=') || text.ends_with(".ix") {
        return None;
    }
    // A path may contain a colon.
    let parts = [Some((text, "", true)), text.rsplit_once(':').map(|(model, kernel)| (model, kernel, false))];
    let is_model = |(model, ..): &(&str, &str, bool)| *model == DEMO || Path::new(model).exists();
    let (model, kernel, is_whole) = parts.into_iter().flatten().find(is_model)?;
    Some(ModelName { model, kernel, path: path_of(model), is_whole })
}

/// Returns whether a kernel of this spec has this name, with the name of any target or without one.
fn matches_name(spec: &KernelSpec, name: &str) -> bool {
    let rest = name.strip_prefix(&spec.name());
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('_').is_some_and(|t| Target::from_name(t).is_some()))
}

fn from_spec(spec: KernelSpec, rows: u32, target: Target) -> Result<TargetKernel, Error> {
    spec.check().map_err(KernelError::from)?;
    let kernel = check_kernel(generate(&spec, target)?)?;
    let rows = rows.min(spec.max_rows());
    Ok(TargetKernel { name: kernel.name.clone(), spec: Some(spec), rows, target, kernel })
}

fn check_kernel(kernel: Kernel) -> Result<Kernel, KernelError> {
    match verify(&kernel) {
        Ok(()) => Ok(kernel),
        Err(source) => Err(KernelError::Verify { kernel: kernel.name, source }),
    }
}

/// Returns the kernel of a file, and the spec in a comment there.
fn from_file(path: &Path, target: Target) -> Result<TargetKernel, Error> {
    let file = KernelFile::read(path)?;
    if let Some(spec) = &file.spec {
        // The inputs come from the spec, so the signature must be that of the spec's kernel.
        file.check_signature(&generate(spec, target)?)?;
    }
    let KernelFile { kernel, spec, .. } = file;
    let rows = spec.as_ref().map_or(DEFAULT_ROWS, |spec| DEFAULT_ROWS.min(spec.max_rows()));
    Ok(TargetKernel { name: kernel.name.clone(), spec, rows, target, kernel })
}

/// Returns the selected kernels of a model or a plan, with their uses. Without a path, it is the
/// demo model.
///
/// # Errors
/// If no kernel is selected, or the model cannot be opened or compiled.
pub fn kernels_of_model(path: Option<&Path>, target: Target, selection: &Selection) -> Result<Vec<OfModel>, Error> {
    let model = match OpenModel::open(path)? {
        OpenModel::Plan(plan) => {
            let name = |kernel: &Kernel| kernel.name.clone();
            let chosen = select::kernels(&plan, &name, selection)?;
            return Ok(chosen
                .into_iter()
                .map(|(at, uses)| OfModel { name: name(&plan.kernels[at]), spec: None, uses })
                .collect());
        }
        OpenModel::Model(model) => model,
    };
    let (_, plan) = specs(&model, &CompileOptions { target: Some(target), ..CompileOptions::default() })?;
    let chosen = select::kernels(&plan, &KernelSpec::name, selection)?;
    let of = |(at, uses): (usize, Vec<Use>)| {
        let spec = &plan.kernels[at];
        OfModel { name: spec.name(), spec: Some(spec.to_string()), uses }
    };
    Ok(chosen.into_iter().map(of).collect())
}

/// Kernel of a model, with its uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfModel {
    /// Name; for a model, without the target's name.
    pub name: String,
    /// Spec; `None` for a plan.
    pub spec: Option<String>,
    /// Uses of the kernel.
    pub uses: Vec<Use>,
}

/// An open model or plan.
#[derive(Debug)]
pub enum OpenModel {
    /// A plan.
    Plan(Box<Plan<Kernel>>),
    /// A model.
    Model(Box<Model>),
}

impl OpenModel {
    /// Opens a model or plan, or the demo model without a path. Opens the file once.
    fn open(path: Option<&Path>) -> Result<OpenModel, Error> {
        let Some(path) = path else { return Ok(OpenModel::Model(Box::new(Model::new(ixc_compile::demo::open()?)?))) };
        Ok(match Input::open(path)? {
            Input::Plan(file) => OpenModel::Plan(Box::new(ixc_runtime::file::of_file(file, path)?.plan)),
            Input::Model(gguf) => OpenModel::Model(Box::new(Model::new(*gguf)?)),
        })
    }
}

/// Returns whether a text is the name of a model: an existing file or folder, or the built-in one.
pub fn is_model(text: &str) -> bool {
    path_of(text).is_none_or(Path::exists)
}

/// Returns the path of a model; `None` for the demo model.
fn path_of(model: &str) -> Option<&Path> {
    (model != DEMO).then(|| Path::new(model))
}

/// Opens a model, and returns its kernel like [`from_open_model`].
fn from_model(model: &str, name: &str, target: Target, selection: &Selection) -> Result<TargetKernel, Error> {
    from_open_model(&OpenModel::open(path_of(model))?, model, name, target, selection)
}

/// Returns the kernel whose name contains `name`, among the selected ones of an open model. `model`
/// is the name of the model.
fn from_open_model(
    opened: &OpenModel,
    model: &str,
    name: &str,
    target: Target,
    selection: &Selection,
) -> Result<TargetKernel, Error> {
    match opened {
        OpenModel::Plan(plan) => {
            let names = select::kernels(plan, &|kernel: &Kernel| kernel.name.clone(), selection)?;
            let names: Vec<KernelName> = names
                .into_iter()
                .map(|(number, _)| KernelName { number, name: plan.kernels[number].name.clone() })
                .collect();
            let kernel = check_kernel(plan.kernels[find_kernel(model, name, &names)?].clone())?;
            Ok(TargetKernel { name: kernel.name.clone(), spec: None, rows: DEFAULT_ROWS, target, kernel })
        }
        OpenModel::Model(opened) => {
            let (_, plan) = specs(opened, &CompileOptions { target: Some(target), ..CompileOptions::default() })?;
            let names = select::kernels(&plan, &KernelSpec::name, selection)?;
            let names: Vec<KernelName> =
                names.into_iter().map(|(number, _)| KernelName { number, name: plan.kernels[number].name() }).collect();
            from_spec(plan.kernels[find_kernel(model, name, &names)?].clone(), DEFAULT_ROWS, target)
        }
    }
}

/// Name of a plan's kernel.
struct KernelName {
    /// Number of the kernel in the plan.
    number: usize,
    name: String,
}

/// Returns the kernel with this name, or the only one whose name contains it.
fn find_kernel(model: &str, name: &str, names: &[KernelName]) -> Result<usize, KernelError> {
    if let Some(exact) = names.iter().find(|other| other.name == name) {
        return Ok(exact.number);
    }
    let found: Vec<&KernelName> = names.iter().filter(|other| other.name.contains(name)).collect();
    let (model, name) = (model.to_owned(), name.to_owned());
    let texts = |names: &[&KernelName]| names.iter().map(|of| of.name.clone()).collect();
    match found.as_slice() {
        [one] => Ok(one.number),
        [] => Err(KernelError::NotInModel { model, name, names: texts(&names.iter().collect::<Vec<_>>()) }),
        several => Err(KernelError::Several { model, name, names: texts(several) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_kernels::generator::limits::limit;
    use ixc_kernels::generator::text::{Field, FieldKind};

    #[test]
    fn kernel_is_found_by_name_spec_or_file() {
        let target = Target::PORTABLE;
        let row = choose("gemm_q4_k", target).unwrap();
        let spec = choose(catalogue::find("gemm_q4_k").unwrap().text, target).unwrap();
        assert_eq!((row.kernel.clone(), row.rows, spec.rows), (spec.kernel.clone(), 96, DEFAULT_ROWS));
        assert_eq!(choose(&spec.name, target).unwrap().kernel, row.kernel);
        assert_eq!(choose(&row.spec.unwrap().name(), target).unwrap().kernel, row.kernel);
        let folder = std::env::temp_dir().join(format!("ixc-choose-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("k.ix");
        std::fs::write(&file, row.kernel.to_string()).unwrap();
        assert_eq!(choose(file.to_str().unwrap(), target).unwrap().kernel.to_string(), row.kernel.to_string());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn unusable_kernel_specs_are_refused() {
        let error = |text: &str| choose(text, Target::AMX).unwrap_err().to_string();
        assert_eq!(error("softmax n=4294967295"), "n is \"4294967295\"; expected at most 16777216");
        assert!(error("attention_part group=4294967295 d=1 dv=1 scale=1.0").contains("at most 256"));
        assert!(error("embed format=q4_k_r16 rows=3 n=256").contains("that is not packed"));
        assert!(error("linear format=a8_super k=256 tile=8 n=8 shape=gemv").contains("a weight's format"));
        assert!(error("quantise n=256 out=f16").contains("expected a format of activations"));
        // The largest allowed values give a kernel or an error.
        for kind in KINDS {
            for (lead, tail) in [("f32", "gemv"), ("q4_k", "gemm"), ("bf16", "tiles")] {
                let fields: Vec<String> = kind.fields.iter().map(|field| largest(field, lead, tail)).collect();
                let text = format!("{} {}", kind.word, fields.join(" "));
                for target in [Target::AVX2, Target::AMX] {
                    let made = choose(&text, target);
                    println!("{text} {target:?}: {}", made.map_or_else(|e| e.to_string(), |_| "a kernel".into()));
                }
            }
        }
    }

    /// Returns a field with its largest allowed value.
    fn largest(field: &Field, format: &str, shape: &str) -> String {
        let name = field.name;
        match field.holds {
            FieldKind::Flag => name.to_owned(),
            // The weight determines the activations' format.
            FieldKind::Format if name == "x" => String::new(),
            FieldKind::Format if name == "out" => "out=f32".to_owned(),
            FieldKind::Format if name == "to" => "to=q4_k_r16".to_owned(),
            FieldKind::Format => format!("{name}={format}"),
            FieldKind::Cache => format!("{name}=q8_0/q4_0"),
            FieldKind::Pace => format!("{name}=65536/8"),
            FieldKind::Float => format!("{name}=1.0"),
            FieldKind::Word(_) if name == "shape" => format!("shape={shape}"),
            FieldKind::Word(words) => format!("{name}={}", words[words.len() - 1]),
            FieldKind::Number => format!("{name}={}", limit(name)),
        }
    }

    #[test]
    fn kernels_of_a_model_are_found_by_a_part_of_their_name() {
        let route = choose("demo:route", Target::PORTABLE).unwrap();
        assert!(
            matches!(route.spec, Some(KernelSpec::Route(ixc_kernels::Route { experts: 16, .. }))),
            "{:?}",
            route.spec
        );
        let error = |text: &str| choose(text, Target::PORTABLE).unwrap_err().to_string();
        assert!(error("demo:gem").starts_with("\"gem\" matches several kernels of demo: "), "{}", error("demo:gem"));
        assert!(error("demo:nothing").starts_with("demo has no kernel whose name contains \"nothing\"; it has "));
        assert!(
            error("demo").starts_with("demo names no kernel; a model's kernels are MODEL:NAME"),
            "{}",
            error("demo")
        );
        assert!(error("gemm_q4").contains("similar names: gemm_q4_0, gemm_q4_k"), "{}", error("gemm_q4"));
        assert!(error("gemm-q4k").contains("similar names: gemm_q4_k, "), "{}", error("gemm-q4k"));
    }
}
