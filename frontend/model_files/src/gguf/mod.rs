//! The GGUF reader: a model file, checked whole, then lent out as typed metadata and tensor byte ranges.
//!
//! In: a path (or bytes). Out: [`Gguf`], for which everything below holds, so that nobody after it checks again:
//!
//! - every count, length and offset was compared with the file's size before it was used, in arithmetic that cannot wrap;
//! - memory taken for metadata is a small multiple of the bytes that hold it in the file;
//! - keys and tensor names are UTF-8, non-empty and unique; metadata arrays hold no arrays;
//! - each tensor has 1 to 4 dimensions, none zero, a known type, whole blocks in a row, an aligned start, and a byte range
//!   that lies inside its file and overlaps no other's.
//!
//! Weights stay in the mapped file. A tensor of a type that `ixc` cannot compute with (F64, IQ1_S, …) still opens, so that it
//! can be inspected; [`Gguf::require_format`] is where a model that uses it is refused.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `file` | opening: mapping, split files, tensor bytes, identity |
//! | `parse` | bytes to metadata and tensor table: the only code that reads unchecked bytes |
//! | `metadata` | typed access to keys |
//! | `value` | the values that a key can have |
//! | `vocabulary` | keys of a vocabulary to a `TokenizerSpec` |
//! | `tensor_type` | ggml's tensor types: id, name, block |
//! | `error` | what can be wrong, and where |
//! | `foreign` | what a file that is no GGUF is instead |
//! | [`mod@write`] | the inverse, for tests and tools |
//!
//! ```
//! use ixc_model_files::gguf::{Gguf, write::GgufWriter};
//! let bytes = GgufWriter::new().key("general.architecture", "llama").f32_tensor("t", &[2], &[1.0, 2.0]).finish();
//! let gguf = Gguf::from_bytes("two.gguf".as_ref(), bytes)?;
//! assert_eq!(gguf.metadata().read::<&str>("general.architecture")?, "llama");
//! assert_eq!(*gguf.tensor_data(gguf.require_tensor("t")?), [0, 0, 128, 63, 0, 0, 0, 64]);
//! # Ok::<(), ixc_model_files::gguf::GgufError>(())
//! ```

mod error;
mod file;
mod foreign;
mod metadata;
mod parse;
mod tensor_type;
mod value;
mod vocabulary;
pub mod write;

pub use error::{Fault, GgufError, Place, among, quoted};
pub use file::{FileIdentity, Gguf, Made, ShardFile};
pub use metadata::{FromValue, Metadata, Mismatch};
pub use parse::{MAX_ALIGNMENT, MAX_DIMENSIONS, MAX_KEY_BYTES, MAX_TENSOR_NAME_BYTES, MIN_ALIGNMENT, Tensor};
pub use tensor_type::{NO_ID, TENSOR_TYPES, TensorType};
pub use value::{Array, StringArray, Value};
pub use vocabulary::{VocabularyError, read_vocabulary};
