//! What test programs of this crate share.

use std::path::{Path, PathBuf};

/// The folder `name` in `../shared`, or `None`, said aloud, where the checkout has none.
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "../shared is missing");
    println!("NOT RUN: {name}: ../shared is missing");
    None
}
