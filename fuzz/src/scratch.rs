//! Temporary folder of a process. Inputs are written there for entry points that take a path.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Path of the temporary folder. The runner removes the folder, because a child that crashes
/// cannot.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = std::env::var_os(VARIABLE)
        .map_or_else(|| std::env::temp_dir().join(format!("ixc-fuzz-{}", std::process::id())), PathBuf::from);
    fs::create_dir_all(&path).expect("the folder of temporary files can be written");
    path
});

/// Environment variable with the folder of a child.
pub const VARIABLE: &str = "IXC_FUZZ_SCRATCH";

/// Returns the path of the temporary folder.
pub fn folder() -> &'static Path {
    &FOLDER
}

/// Writes a file with these bytes, and returns its path.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    fs::write(&path, bytes).expect("the folder of temporary files can be written");
    path
}

/// Returns an empty folder of this name.
pub fn empty_folder(name: &str) -> PathBuf {
    let path = folder().join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("the folder of temporary files can be written");
    path
}
