//! The demo model: inside of the program, so that an installed `ixc` runs without any file. Its origin and terms stand in
//! `examples/models/README.md`.

use std::path::Path;

use ixc_frontend::gguf::Gguf;

use crate::Error;

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

/// Opens it.
///
/// # Errors
/// None that a test would not have met.
pub fn open() -> Result<Gguf, Error> {
    Ok(Gguf::from_bytes(Path::new(NAME), bytes())?)
}
