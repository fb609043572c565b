//! The commit of this build, for `ixc --version`.
//!
//! In a checkout, git gives the commit. In a package, the file `.cargo_vcs_info.json` gives the
//! commit; `cargo package` adds this file. Other sources have no commit. `SOURCE_DATE_EPOCH` sets
//! the date.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Number of shown digits of a commit.
const DIGITS: usize = 9;

fn main() {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let root = Path::new(&root);
    let workspace = root.parent().unwrap_or(root);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let (commit, mut date) = match (packed(root), checked_out(workspace)) {
        (Some(commit), _) => (Some(commit), None),
        (None, Some((commit, date))) => (Some(commit), Some(date)),
        (None, None) => (None, None),
    };
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.trim().parse().ok());
    if let Some(time) = epoch.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds))) {
        date = humantime::format_rfc3339_seconds(time).to_string().split('T').next().map(str::to_owned);
    }
    for (name, value) in [("IXC_BUILD_COMMIT", commit), ("IXC_BUILD_DATE", date)] {
        if let Some(value) = value {
            println!("cargo::rustc-env={name}={value}");
        }
    }
}

/// Returns the commit of a package.
fn packed(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join(".cargo_vcs_info.json")).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1)?;
    commit.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| commit.chars().take(DIGITS).collect())
}

/// Returns the commit of a checkout, and its date.
fn checked_out(root: &Path) -> Option<(String, String)> {
    // Sources without `.git` are not a checkout. In that case, git is not started, because it would
    // search the folders above.
    if !root.join(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // If the sources are inside another repository, that repository's commit must not be reported.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // Files that a new commit changes: the branch, or HEAD if no branch is checked out, and the
    // packed branches. Only release builds watch these files, so a debug build may name an older
    // commit. Otherwise each commit would rebuild this crate and all crates that use it.
    let watches = std::env::var_os("PROFILE").is_some_and(|profile| profile == "release");
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()).filter(|_| watches) {
        // If a watched file were missing, cargo would build again each time.
        if let Some(path) =
            git(&["rev-parse", "--git-path", name]).map(|path| root.join(path)).filter(|path| path.exists())
        {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let known = git(&["log", "-1", &format!("--abbrev={DIGITS}"), "--format=%h %cs"])?;
    let (commit, date) = known.split_once(' ')?;
    Some((commit.to_owned(), date.to_owned()))
}
