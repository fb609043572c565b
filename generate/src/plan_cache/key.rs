//! Key of a cached plan: a text of everything that the plan depends on.
//!
//! ```text
//! ixc 0.1.0 (abcdef123 2026-11-22), plans of version 36
//! program 11534336 bytes, modified 1764331200.0
//! file 712484896 bytes, modified 1764331201.52, inode 1234, header 5a827a60 of 1832960 bytes
//! parts Parts { layers: 18446744073709551615, head: true, nextn: Absent }
//! target zen4, caches CoreCaches { l1d: 32768, l2: 1048576, l3: 4194304 }
//! options max_tokens None, OptionSet({…})
//! experts resident
//! ```
//!
//! The path of a model is not part of its key, so a moved model keeps its plans. Neither is the
//! device number, which may change at a reboot. A target fixes the CPU features that a plan's
//! kernels use.

use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;

use ixc_architectures::Parts;
use ixc_compile::build;
use ixc_compile::compile;
use ixc_model_files::gguf::Gguf;
use ixc_runtime::file::VERSION;

/// Place of a plan's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// All weights are in memory.
    Resident,
    /// Experts are streamed from the drive.
    Streamed,
    /// Experts are read from mapped files.
    Mapped,
}

impl Residency {
    /// Returns the name of the residency in keys.
    fn name(self) -> &'static str {
        match self {
            Residency::Resident => "resident",
            Residency::Streamed => "streamed",
            Residency::Mapped => "mapped",
        }
    }
}

/// Key of the plans of a model and of options, one for each residency of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelKey(String);

/// Key of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanKey {
    text: String,
}

impl ModelKey {
    /// Returns the key of a model's plans. Returns `None` for plans that are not cached: of a model
    /// in memory, or compiled with edited IR, edited kernels or a record of decisions.
    ///
    /// # Errors
    /// If a file's metadata cannot be read.
    pub fn new(gguf: &Gguf, parts: Parts, options: &compile::CompileOptions) -> io::Result<Option<ModelKey>> {
        let is_changed = options.start.is_some() || !options.kernels.is_empty();
        let is_recorded = options.decisions.is_some() || options.recording.is_some();
        let in_memory = gguf.files().iter().any(|file| !file.is_mapped());
        if is_changed || is_recorded || in_memory || options.expert_memory.is_some() {
            return Ok(None);
        }
        let mut text = format!("ixc {}, plans of version {VERSION}\n", build::version());
        // A development build may have the version of an older build, so the program file is part
        // of the key.
        let program = std::fs::metadata("/proc/self/exe").or_else(|_| std::fs::metadata(std::env::current_exe()?))?;
        line(&mut text, format_args!("program {}", changes(&program)));
        for (file, handle) in gguf.files().iter().zip(gguf.handles()?) {
            let identity = file.identity();
            let Some(handle) = handle else { return Ok(None) };
            let there = handle.metadata()?;
            let (crc, header) = (identity.header_crc, identity.header_bytes);
            let inode = there.ino();
            line(
                &mut text,
                format_args!("file {}, inode {inode}, header {crc:08x} of {header} bytes", changes(&there)),
            );
        }
        // The keys and the tokenizer of a folder are in other files than its tensors.
        if gguf.files().iter().any(|file| file.version() == 0) {
            let (tensors, derived) = (gguf.tensors().collect::<Vec<_>>(), gguf.derived_tensors().collect::<Vec<_>>());
            line(&mut text, format_args!("metadata {}", digest(&(gguf.metadata(), tensors, derived))));
        }
        // Tuned tilings have their own line of the key. In this context, they would repeat warnings
        // about tilings.
        let context = compile::context(&compile::CompileOptions { tuned: None, ..options.clone() }, None);
        line(&mut text, format_args!("parts {parts:?}"));
        line(&mut text, format_args!("target {}, caches {:?}", context.target.name(), context.caches));
        line(&mut text, format_args!("options max_tokens {:?}, {:?}", options.max_tokens, context.options));
        if let Some(tuned) = &options.tuned {
            line(&mut text, format_args!("tuned {}", digest(&(tuned, options.target.is_none()))));
        }
        Ok(Some(ModelKey(text)))
    }

    /// Returns the key of one of the plans.
    pub fn with(&self, residency: Residency) -> PlanKey {
        PlanKey { text: format!("{}experts {}\n", self.0, residency.name()) }
    }
}

impl PlanKey {
    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the name of the plan's files. Different keys may have the same name, though seldom.
    /// So an entry contains the text of its key.
    pub fn id(&self) -> String {
        digest(&self.text)
    }
}

fn line(text: &mut String, line: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

/// Returns the length of a file, and the time of its last change.
fn changes(there: &std::fs::Metadata) -> String {
    format!("{} bytes, modified {}.{:09}", there.len(), there.mtime(), there.mtime_nsec())
}

/// Returns a hash of a value's text for debugging, without the text in memory.
fn digest(value: &impl fmt::Debug) -> String {
    struct Hashed(DefaultHasher);
    impl Write for Hashed {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut hashed = Hashed(DefaultHasher::new());
    // Writing to a hash cannot fail.
    let _ = write!(hashed, "{value:?}");
    format!("{:016x}", hashed.0.finish())
}
