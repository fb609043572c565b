//! `--sandbox`: limits that the program sets for itself before and after it loads a model.
//!
//! ```text
//! begin    before threads start: launcher of helpers, capabilities, resource limits, writes
//! finish   after loading: files, system calls, executable memory
//! ```
//!
//! `docs/sandbox.md` describes the limits.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ixc_files::private_files;
use ixc_generate::loaded_model::LoadOptions;
use ixc_generate::plan_file::open_plan;
use ixc_runtime::load::is_source;
use ixc_sandbox::files::{FileAccess, confine, confine_writes};
use ixc_sandbox::support::Support;
use ixc_sandbox::{Role, SandboxError, filter, process};
use ixc_text::launcher;

use super::invocation::{helper_program, is_embedded};
use super::output::note;

/// Value of `--sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxMode {
    /// Use what the kernel supports, and print what is missing.
    Auto,
    /// Fail if the kernel lacks a part.
    On,
    /// Set no limits.
    Off,
}

/// Files that a command needs while it loads a model and after that.
#[derive(Debug, Default)]
pub struct SandboxFiles {
    /// Files and folders that are written while the model is loaded.
    pub loading: Vec<PathBuf>,
    /// Files and folders that are used after the model is loaded.
    pub running: FileAccess,
    /// Whether a service manager listens on an abstract Unix socket.
    pub has_abstract_socket: bool,
}

impl SandboxFiles {
    /// Returns the files of a command that loads `models`. Makes the folders of caches, because
    /// folders that do not exist cannot have rules.
    pub fn from_options(options: &LoadOptions, models: &[&Path]) -> SandboxFiles {
        let caches = options.plan_cache.as_ref().map(|cache| cache.folder().to_owned());
        let caches: Vec<PathBuf> = caches.into_iter().chain(private_files::folder()).collect();
        if !models.is_empty() && options.plan_cache.is_some() {
            // Without the folder, plans are not cached, and the cache logs the reason.
            caches.iter().for_each(|folder| drop(private_files::create_folder(folder)));
        }
        SandboxFiles { loading: caches, ..SandboxFiles::default() }
    }

    /// Adds a folder that is written while the model is loaded and afterwards.
    pub fn write(&mut self, folder: &Path) {
        self.loading.push(folder.to_owned());
        self.running.write.push(folder.to_owned());
    }

    /// Adds the folder of an output that is written at the end.
    pub fn write_output(&mut self, file: &Path) {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        self.write(folder.unwrap_or(Path::new(".")));
    }

    /// Adds models that are loaded on request, with files next to them, such as parts of split
    /// models. Also adds the model files of plans, which may be elsewhere.
    pub fn read_models<'p>(&mut self, models: impl IntoIterator<Item = &'p Path>) {
        for path in models {
            let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            let folders = [path, real.as_path()].map(|path| if path.is_dir() { Some(path) } else { path.parent() });
            self.running.read.extend(folders.into_iter().flatten().map(Path::to_owned));
            // Files of a Hugging Face folder are links to files elsewhere.
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            self.running.read.extend(entries.filter_map(|entry| entry.path().canonicalize().ok()));
            self.running.read.extend(files_of_plan(path));
        }
        self.running.write.extend(self.loading.iter().cloned());
    }
}

/// Returns the model files that a plan was made from. A file that only has the plan's path is left
/// out, because the plan may come from a stranger. Returns none for a model, or for a plan that
/// cannot be read: loading it reports the error.
fn files_of_plan(path: &Path) -> Vec<PathBuf> {
    if path.extension().is_none_or(|extension| extension != "ixp") {
        return Vec::new();
    }
    let Ok(file) = open_plan(path, None) else { return Vec::new() };
    let folder = path.parent().unwrap_or(path);
    let sources = file.plan.files.iter().filter(|source| is_source(&folder.join(&source.path), source));
    sources.filter_map(|source| folder.join(&source.path).canonicalize().ok()).collect()
}

/// Sandbox of a process that loads a model.
#[derive(Debug)]
pub struct Sandbox {
    files: SandboxFiles,
    is_required: bool,
    support: Support,
}

impl Sandbox {
    /// Limits this process before it loads a model. Call it before threads start. Returns `None`
    /// without a sandbox.
    ///
    /// # Errors
    /// With `on`, if the system lacks or refuses a part of the sandbox.
    pub fn begin(mode: SandboxMode, files: SandboxFiles) -> anyhow::Result<Option<Sandbox>> {
        let is_required = mode == SandboxMode::On;
        // A program that embeds this one has other work, which the limits would break.
        if mode == SandboxMode::Off || !is_required && is_embedded() {
            return Ok(None);
        }
        let support = Support::of_kernel();
        let missing = support.missing().join("; ");
        if !missing.is_empty() {
            if is_required {
                return Err(ixc_serve::Error::from(SandboxError::Missing { missing }).into());
            }
            note!("ixc: the sandbox is incomplete: this system lacks {missing}");
        }
        if support.landlock == 0 && !support.seccomp {
            return Ok(None);
        }
        let started = helper_program().and_then(|program| launcher::start(&program));
        if let Err(error) = started {
            if is_required {
                return Err(ixc_error::Error::io(Path::new("the launcher of helpers"), "start")(error).into());
            }
            note!("ixc: no sandbox: the process that launches helper programs does not start: {error}");
            return Ok(None);
        }
        let sandbox = Sandbox { files, is_required, support };
        sandbox.settle(process::limit())?;
        sandbox.settle(confine_writes(&sandbox.files.loading, sandbox.files.has_abstract_socket))?;
        Ok(Some(sandbox))
    }

    /// Limits this process after it has loaded its models. Threads that start later have all
    /// limits.
    ///
    /// # Errors
    /// With `on`, if the system refuses a part of the sandbox.
    pub fn finish(self, role: Role) -> anyhow::Result<()> {
        self.settle(confine(&self.files.running))?;
        if self.support.seccomp {
            self.settle(filter::install(role))?;
        }
        tracing::info!(landlock = self.support.landlock, seccomp = self.support.seccomp, role = role.name(), "sandbox");
        if self.is_required && !role.refuses_code() {
            note!("ixc: the sandbox allows new executable code, because models are loaded and compiled on request");
        }
        Ok(())
    }

    /// Returns a failure, or prints it if the sandbox is not required.
    fn settle(&self, result: Result<(), SandboxError>) -> anyhow::Result<()> {
        match result {
            Err(error) if self.is_required => Err(ixc_serve::Error::from(error).into()),
            Err(error) => {
                note!("ixc: the sandbox is incomplete: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}
