//! The demo model: inside of the program, so that an installed `ixc` runs without any file. Its origin and terms stand in
//! `examples/models/README.md`.

use std::io;
use std::path::{Path, PathBuf};

use ixc_files::{own, read_bytes};
use ixc_frontend::gguf::Gguf;
use ixc_runtime::load::BuiltIn;

use crate::{Error, cache_file};

/// What stands for its path in messages.
pub const NAME: &str = "(built-in demo model)";

/// Aligned as GGUF aligns tensors in a file, which starts at a page.
#[repr(align(64))]
struct Aligned<B: ?Sized>(B);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../examples/models/rustling-q4_k_m.gguf"));

/// The file.
pub fn bytes() -> &'static [u8] {
    &FILE.0
}

/// As plans that are made from it name it.
pub fn built_in() -> BuiltIn {
    BuiltIn { path: NAME, bytes: bytes() }
}

/// A file with the model, for what needs one: in the user's cache folder, written there once.
///
/// # Errors
/// When there is no such folder, or it cannot be written.
pub fn file() -> Result<PathBuf, Error> {
    let folder = own::folder().ok_or_else(|| {
        let source = io::Error::new(io::ErrorKind::NotFound, "neither XDG_CACHE_HOME nor HOME is an absolute path");
        Error::Io { path: NAME.into(), action: "write", source }
    })?;
    let path = folder.join(format!("demo-{:08x}.gguf", crc32fast::hash(bytes())));
    // What is there may be anything.
    let same = read_bytes(&path, bytes().len() as u64).is_ok_and(|there| there == bytes());
    if !same {
        cache_file::write_bytes(&path, bytes()).map_err(Error::io(&path, "write"))?;
    }
    Ok(path)
}

/// Opens it.
///
/// # Errors
/// None that a test would not have met.
pub fn open() -> Result<Gguf, Error> {
    Ok(Gguf::from_bytes(Path::new(NAME), bytes())?)
}
