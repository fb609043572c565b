//! GGUF reader. It checks a model file completely; after that, it lends typed metadata and byte
//! ranges of tensors.
//!
//! The input is a path or bytes. The output is a [`Gguf`] with these guarantees, which callers need
//! not check again:
//!
//! - every count, length and offset was compared with the file's size before use, in arithmetic
//!   that cannot wrap;
//! - the memory for metadata is a small multiple of its size in the file;
//! - keys and tensor names are UTF-8, non-empty and unique; no metadata array has arrays as
//!   elements;
//! - each tensor has 1 to 4 dimensions, all non-zero, a known type, and whole blocks in a row;
//! - the offset of each tensor is aligned; its byte range lies inside its file and does not overlap
//!   others.
//!
//! Weights stay in the mapped file. A file with tensors of a type that `ixc` cannot compute with
//! (F64, IQ1_S, …) can still be opened and inspected. [`Gguf::require_format`] refuses a model that
//! uses such a type.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `file` | opening a model: mapping, split files, tensor bytes, identity |
//! | `parse` | parser of header and tensor table: the only code that reads unchecked bytes |
//! | `metadata` | typed access to keys |
//! | `value` | values that a key can have |
//! | `vocabulary` | conversion of a vocabulary's keys to a `TokenizerSpec` |
//! | `tensor_type` | ggml's tensor types: id, name, block size |
//! | `error` | errors, with positions in the file |
//! | `foreign` | errors for files of other types |
//! | [`mod@write`] | writer of GGUF files, for tests and tools |
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

pub use error::{Fault, GgufError, Place, among, quote};
pub use file::{DerivedTensor, FileIdentity, Gguf, ShardFile};
pub use metadata::{FromValue, Metadata, Mismatch};
pub use parse::{MAX_ALIGNMENT, MAX_DIMENSIONS, MAX_KEY_BYTES, MAX_TENSOR_NAME_BYTES, MIN_ALIGNMENT, Tensor};
pub use tensor_type::{NO_ID, TENSOR_TYPES, TensorType};
pub use value::{Array, StringArray, Value};
pub use vocabulary::{VocabularyError, read_vocabulary};
