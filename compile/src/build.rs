//! Identity of this `ixc`: its version, and the commit and date from which it was built, if they
//! were known at build time.
//!
//! `build.rs` gets the commit and date from git, or from the file that `cargo package` adds to its
//! archive. `SOURCE_DATE_EPOCH` sets the date.

use std::sync::LazyLock;

use serde::Serialize;

use ixc_architectures::architectures;
use ixc_targets::TARGETS;

/// Identity of this build: version, commit and date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Build {
    /// The version of `ixc`.
    pub version: &'static str,
    /// The commit, in hexadecimal, shortened.
    pub commit: Option<&'static str>,
    /// Date of the commit, as `YYYY-MM-DD`.
    pub date: Option<&'static str>,
}

/// The build of this program.
pub const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("IXC_BUILD_COMMIT"),
    date: option_env!("IXC_BUILD_DATE"),
};

/// Returns the text of `--version` without the program's name: `0.1.0 (abcdef123 2026-11-22)`.
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let known: Vec<&str> = [BUILD.commit, BUILD.date].into_iter().flatten().collect();
        if known.is_empty() { BUILD.version.to_owned() } else { format!("{} ({})", BUILD.version, known.join(" ")) }
    });
    &TEXT
}

/// Returns the version with its commit (or the statement that it is unknown), the targets and the
/// architectures.
pub fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let targets: Vec<&str> = TARGETS.iter().map(|row| row.name).collect();
        let architectures: Vec<&str> = architectures().map(|row| row.name).collect();
        let commit = BUILD.commit.unwrap_or("unknown");
        format!(
            "{}\ncommit: {commit}\ntargets: {}\narchitectures: {}",
            version(),
            targets.join(", "),
            architectures.join(", ")
        )
    });
    &TEXT
}
