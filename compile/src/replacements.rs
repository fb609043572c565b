//! Kernels that replace generated ones of the same name, so that an edited kernel can run in its
//! model.
//!
//! ```text
//! ixc compile model.gguf --dump-dir d             every kernel as d/kernels/NAME.ix
//! (edit d/kernels/gemv_q4_k_....ix)
//! ixc run model.gguf --override d/kernels         the edited ones in place of the generated
//! ```
//!
//! Postcondition: a kernel that replaces another one verifies, and has the dims and buffers of the
//! original. Its results with random inputs were checked ([`check`]), unless the caller turned the
//! check off.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ixc_ir::kernel::Kernel;
use ixc_ir::kernel::parse::parse;
use ixc_ir::plan::Plan;
use ixc_kernels::KernelSpec;
use ixc_targets::Target;

use crate::Error;
use crate::error::replacement::ReplacementError;
use crate::excerpt::Excerpt;
use crate::kernel_check::check;

/// Max number of files in a folder. No model has as many kernels.
const MAX_FILES: usize = 4096;

/// Max size of kernel IR. Generated kernels have about ten kilobytes.
const MAX_IR_BYTES: u64 = 4 << 20;

/// Text at the start of a comment that contains the spec of a kernel, without the comment sign.
/// From the spec, an edited kernel gets the inputs and dims of its original.
pub const SPEC: &str = " spec: ";

/// Kernel from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelFile {
    path: PathBuf,
    text: String,
    /// The kernel, which verifies.
    pub kernel: Kernel,
    /// Spec from a comment of the file, if there is one.
    pub spec: Option<KernelSpec>,
}

impl KernelFile {
    /// Reads a file of kernel IR.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has no valid kernel or spec. The error gives the line.
    pub fn read(path: &Path) -> Result<KernelFile, Error> {
        let text = ixc_files::read_text(path, MAX_IR_BYTES)?;
        let kernel = parse(&text).map_err(|error| {
            ReplacementError::Parse(Excerpt::new(path, &text, error.line, error.column, &error.problem))
        })?;
        let spec_of = |(at, line): (usize, &'_ str)| Some((at, line.strip_prefix(';')?.strip_prefix(SPEC)?.to_owned()));
        let said = text.lines().enumerate().find_map(spec_of);
        let read = |(at, said): (usize, String)| {
            let spec = said.parse::<KernelSpec>().and_then(|spec| spec.check().map(|()| spec));
            spec.map_err(|error| ReplacementError::Parse(Excerpt::new(path, &text, at + 1, 2 + SPEC.len(), &error)))
        };
        let spec = said.map(read).transpose()?;
        Ok(KernelFile { path: path.to_owned(), kernel, spec, text })
    }

    /// Checks that the kernel has the same signature as the kernel `own`: its original, or the
    /// kernel that it replaces.
    ///
    /// # Errors
    /// The error gives the first line of the signature that differs.
    pub fn check_signature(&self, own: &Kernel) -> Result<(), ReplacementError> {
        let Some((expected, found)) = signature_difference(own, &self.kernel) else { return Ok(()) };
        let code = |line: &str| line.split(['/', ';']).next().unwrap_or_default().trim().to_owned();
        // A buffer may be written in another form, so its line is found by the buffer's name. If
        // there is no such line, or dims differ, the error gives the line with the kernel's name.
        let head = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        let lines = || (1..).zip(self.text.lines().map(code));
        let of_buffer = lines().find(|(_, line)| !found.starts_with("kernel ") && head(line) == head(&found));
        let kernel = || lines().find(|(_, line)| line.starts_with("kernel "));
        let line = of_buffer.or_else(kernel).map_or(1, |(line, _)| line);
        let indent = self.text.lines().nth(line - 1).map_or(0, |text| text.len() - text.trim_start().len());
        let said = if found.is_empty() { "no line of this kind" } else { &found };
        let problem = format!(
            "the signature differs from that of the original kernel: found \"{said}\", expected \"{expected}\""
        );
        Err(ReplacementError::Parse(Excerpt::new(&self.path, &self.text, line, indent + 1, &problem)))
    }
}

/// Kernels that replace others, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replacements {
    kernels: BTreeMap<String, KernelFile>,
    /// Whether results are not checked.
    is_unchecked: bool,
}

impl Replacements {
    /// Reads a file of kernel IR, or all files in a folder whose names end with `.ix`.
    ///
    /// # Errors
    /// Fails if a file cannot be read or is not a kernel, if there are no files, or if two kernels
    /// have the same name.
    pub fn read(path: &Path) -> Result<Replacements, Error> {
        let files = if path.is_dir() { files(path)? } else { vec![path.to_owned()] };
        let mut kernels = BTreeMap::new();
        for file in files {
            let kernel = KernelFile::read(&file)?;
            if let Some(KernelFile { path: other, .. }) = kernels.insert(kernel.kernel.name.clone(), kernel) {
                return Err(ReplacementError::Twice { path: file, other }.into());
            }
        }
        Ok(Replacements { kernels, is_unchecked: false })
    }

    /// Turns off the check of results. It is not needed for kernels that are only shown or are
    /// meant to differ.
    #[must_use]
    pub fn without_check(self) -> Replacements {
        Replacements { is_unchecked: true, ..self }
    }

    /// Whether there are no replacements.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Puts the kernels into a plan. Returns the names of those that differ from the originals.
    ///
    /// # Errors
    /// Fails if the plan has no kernel of a name, or one with other dims or buffers. Returns
    /// [`ReplacementError::Departs`] if a kernel computes other results than the one that it
    /// replaces.
    pub fn put_into(&self, plan: &mut Plan<Kernel>) -> Result<Vec<String>, Error> {
        let mut replaced = Vec::new();
        for (name, file) in &self.kernels {
            let Some(own) = plan.kernels.iter_mut().find(|own| own.name == *name) else {
                let names = plan.kernels.iter().map(|kernel| kernel.name.clone()).collect();
                return Err(ReplacementError::Unused { path: file.path.clone(), name: name.clone(), names }.into());
            };
            file.check_signature(own)?;
            if *own != file.kernel {
                if !self.is_unchecked {
                    let target = Target::from_name(&plan.target);
                    let target = target.ok_or_else(|| ReplacementError::Target { found: plan.target.clone() })?;
                    check(&file.path, &file.kernel, own, file.spec.as_ref(), target)?;
                }
                own.clone_from(&file.kernel);
                replaced.push(name.clone());
            }
        }
        if !replaced.is_empty() {
            tracing::info!(kernels = replaced.join(" "), "kernels replaced");
        }
        Ok(replaced)
    }
}

/// Returns the first dim or buffer in which two signatures differ, as text for each kernel. The
/// text is empty if that kernel has no dim or buffer there.
pub fn signature_difference(a: &Kernel, b: &Kernel) -> Option<(String, String)> {
    let (a, b) = (signature(a), signature(b));
    let at = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at))?;
    let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_default();
    Some((line(&a), line(&b)))
}

/// Returns the signature of a kernel as lines: its dims, and its buffers. The kernel's name is
/// replaced by a fixed one, because it is not part of the signature.
fn signature(kernel: &Kernel) -> Vec<String> {
    let declared = Kernel { name: "kernel".to_owned(), body: Vec::new(), ..kernel.clone() };
    declared.to_string().lines().map(|line| line.trim().to_owned()).collect()
}

/// Returns a folder's files of kernel IR, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = || Error::io(folder, "read");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        if path.extension().is_some_and(|extension| extension == "ix") {
            files.push(path);
        }
    }
    files.sort_unstable();
    match files.len() {
        0 => Err(ReplacementError::NoFiles { path: folder.to_owned() }.into()),
        found if found > MAX_FILES => {
            Err(ReplacementError::TooManyFiles { path: folder.to_owned(), found, max: MAX_FILES }.into())
        }
        _ => Ok(files),
    }
}
