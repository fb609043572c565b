//! Demo model inside the program, so that an installed `ixc` can run without a model file. The
//! model's origin and license are in `examples/models/README.md`.

use std::io;
use std::path::{Path, PathBuf};

use ixc_files::{private_files, read_bytes};
use ixc_model_files::gguf::Gguf;

use crate::{Error, cache_file};

/// The model's name in messages, where other models have a path.
pub const NAME: &str = "(built-in demo model)";

/// Bytes with the alignment that GGUF requires, as if the file started at a page.
#[repr(align(64))]
struct Aligned<B: ?Sized>(B);

// This path is a link to the model in `examples`, which makes the file a part of this package.
static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../models/rustling-q4_k_m.gguf"));

/// Returns the model file.
pub fn bytes() -> &'static [u8] {
    &FILE.0
}

/// Returns a file with the model, for commands that need a path. The file is written once to the
/// user's cache folder. If that is not possible, it is written to the user's own folder for
/// temporary files.
///
/// # Errors
/// Fails if neither folder can be written.
pub fn file() -> Result<PathBuf, Error> {
    if let Some(folder) = private_files::folder() {
        match file_in(&folder) {
            Ok(path) => return Ok(path),
            Err(error) => tracing::info!(%error, folder = %folder.display(), "the demo model becomes a temporary file"),
        }
    }
    let folder = private_files::temporary_folder().map_err(Error::io(&std::env::temp_dir(), "write"))?;
    file_in(&folder).map_err(Error::io(&folder, "write"))
}

fn file_in(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join(format!("demo-{:08x}.gguf", crc32fast::hash(bytes())));
    // An existing file may have other contents, so they are compared.
    let same = read_bytes(&path, bytes().len() as u64).is_ok_and(|there| there == bytes());
    if !same {
        cache_file::write_bytes(&path, bytes())?;
    }
    Ok(path)
}

/// Opens the built-in demo model.
///
/// # Errors
/// Never fails; tests open the model.
pub fn open() -> Result<Gguf, Error> {
    Ok(Gguf::from_bytes(Path::new(NAME), bytes())?)
}
