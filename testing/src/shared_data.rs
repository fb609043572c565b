//! Test data outside of the repository.

use std::path::{Path, PathBuf};

/// Returns the path `name` in `../shared`. If the path does not exist, prints a line and returns
/// `None`.
///
/// # Panics
/// If the folder is missing in CI.
pub fn shared_path(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "../shared is missing");
    println!("NOT RUN: {name}: ../shared is missing");
    None
}
