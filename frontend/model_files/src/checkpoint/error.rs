//! Why a folder of safetensors is no model that can be read, and where.

use std::path::Path;

use ixc_failure::{Class, Remedy};
use ixc_files::{ReadError, is_not_regular};
use ixc_ir::derived::DerivedError;

use crate::gguf::{GgufError, among, quoted};

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file is a GGUF one, or was presented as one, and something of it is wrong.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A file that cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A text that is no JSON, or not such as is expected.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: Box<Path>,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// A key of a JSON file that has another kind of value, or none.
    #[error("{}: key \"{}\" is {found}; expected {expected}", path.display(), quoted(key))]
    Key {
        /// The file.
        path: Box<Path>,
        /// The key.
        key: Box<str>,
        /// What it is.
        found: Box<str>,
        /// What it should be.
        expected: Box<str>,
    },
    /// A model that the table has no row for.
    #[error(
        "{}: model_type \"{}\" is not supported as safetensors; supported are {}",
        path.display(), quoted(found), among(found, known)
    )]
    UnknownModel {
        /// The configuration.
        path: Box<Path>,
        /// What it says.
        found: Box<str>,
        /// What is known.
        known: Vec<&'static str>,
    },
    /// A quantisation that is not read.
    #[error("{}: weights are quantised as \"{}\"; supported are fp8 (e4m3), mxfp4, modelopt (FP8, NVFP4), gptq, awq, auto-round, bitsandbytes, and compressed-tensors with 8-bit floats, mxfp4, nvfp4 or integers of 4 or 8 bits", path.display(), quoted(found))]
    Quantisation {
        /// The configuration.
        path: Box<Path>,
        /// What it says.
        found: Box<str>,
    },
    /// Experts as KTransformers' converter packs them, in another way than is read.
    #[error("{}: tensor \"{}\" is of experts that KTransformers packed{fault}; take the folder that they were converted from", path.display(), quoted(tensor))]
    Packed {
        /// The folder.
        path: Box<Path>,
        /// One of them.
        tensor: Box<str>,
        /// What is another way.
        fault: PackedFault,
    },
    /// The folder has no weights.
    #[error("{}: is a Hugging Face folder without model.safetensors, or model.safetensors.index.json: {hint}", path.display())]
    NoWeights {
        /// The folder.
        path: Box<Path>,
        /// What there is instead.
        hint: &'static str,
    },
    /// A file of the index that is not there.
    #[error("{}: shard {} is missing: it has tensor \"{}\"", path.display(), missing.display(), quoted(tensor))]
    MissingShard {
        /// The index.
        path: Box<Path>,
        /// The file.
        missing: Box<Path>,
        /// A tensor of it.
        tensor: Box<str>,
    },
    /// A name of a file that is none of the folder's.
    #[error("{}: shard \"{}\" is no name of a file beside it", path.display(), quoted(shard))]
    ShardName {
        /// The index.
        path: Box<Path>,
        /// What it says.
        shard: Box<str>,
    },
    /// Bytes that are no safetensors file.
    #[error("{}: {}{fault}", path.display(), tensor.as_deref().map(|name| format!("tensor \"{}\": ", quoted(name))).unwrap_or_default())]
    Malformed {
        /// The file.
        path: Box<Path>,
        /// The tensor that it is about.
        tensor: Option<Box<str>>,
        /// What is wrong.
        fault: HeaderFault,
    },
    /// A tensor that the model's row does not know.
    #[error("{}: tensor \"{}\" is none that {model} has", path.display(), quoted(tensor))]
    UnknownTensor {
        /// The folder.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// The model.
        model: &'static str,
    },
    /// A tensor that is not there.
    #[error("{}: tensor \"{}\" is missing", path.display(), quoted(tensor))]
    TensorMissing {
        /// The folder.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
    },
    /// A tensor of another shape or type than its use takes.
    #[error("{}: tensor \"{}\" is {found}; expected {expected}", path.display(), quoted(tensor))]
    Tensor {
        /// The folder.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// What it is.
        found: Box<str>,
        /// What it should be.
        expected: Box<str>,
    },
    /// A tensor that cannot be derived from what is there.
    #[error("{}: tensor \"{}\": {source}", path.display(), quoted(tensor))]
    Derived {
        /// The folder.
        path: Box<Path>,
        /// What is made.
        tensor: Box<str>,
        /// Why not.
        source: DerivedError,
    },
}

/// Why packed experts are not read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PackedFault {
    /// A name that none of the methods that are read has.
    #[error(" by another method than int8 and int4 (AWQ, perhaps), which is not read")]
    Name,
    /// Rows without the integer that their largest number has.
    #[error(
        " for other kernels than AMX's (moe_int8 or moe_int4, perhaps), whose order is not read: row {row} has {found} for its largest number, and of {method} it is {expected}"
    )]
    Order {
        /// The row.
        row: usize,
        /// Its largest integer, as it is read.
        found: f32,
        /// What was expected.
        method: &'static str,
        /// Its largest integer.
        expected: u8,
    },
}

/// What is wrong with a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// No room for the header's length.
    #[error("has {found} bytes; a safetensors file has 8 for the length of its header")]
    Short {
        /// Bytes of the file.
        found: u64,
    },
    /// A header that is longer than the file, or than any.
    #[error("claims a header of {found} bytes; at most {limit} are read, and in the file")]
    Length {
        /// What it claims.
        found: u64,
        /// The most.
        limit: u64,
    },
    /// A name that is there twice.
    #[error("appears twice")]
    Duplicate,
    /// More tensors than any model has.
    #[error("has more than {limit} tensors")]
    Count {
        /// The most.
        limit: usize,
    },
    /// A type that does not exist.
    #[error("has type \"{}\", which safetensors have not", quoted(found))]
    Type {
        /// What it says.
        found: Box<str>,
    },
    /// A shape whose bytes are others than the tensor has.
    #[error("has {found} bytes; {shape:?} of {dtype} take {expected}")]
    Bytes {
        /// The shape.
        shape: Box<[u64]>,
        /// The type.
        dtype: &'static str,
        /// Bytes that it has.
        found: u64,
        /// Bytes that it should have.
        expected: u128,
    },
    /// Offsets that are in no order, or outside of the file.
    #[error("data_offsets are {begin} to {end}; the file has {limit} bytes of data")]
    Offsets {
        /// The first byte.
        begin: u64,
        /// The one behind the last.
        end: u64,
        /// Bytes of data.
        limit: u64,
    },
    /// A tensor that does not begin where the one before it ends.
    #[error("begins at byte {begin} of the data; the tensor before it ends at {expected}")]
    Gap {
        /// Where it begins.
        begin: u64,
        /// Where it should.
        expected: u64,
    },
    /// Data that are of no tensor.
    #[error("has {found} bytes of data; its tensors end at {expected}")]
    Rest {
        /// Bytes of data.
        found: u64,
        /// Where the last tensor ends.
        expected: u64,
    },
}

impl CheckpointError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            CheckpointError::Gguf(error) => error.class(),
            // The folder is there, and its file is a pipe or a device.
            CheckpointError::Read(ReadError::Io { source, .. }) if is_not_regular(source) => Class::Io,
            CheckpointError::Read(error) => error.class(),
            CheckpointError::NoWeights { .. } | CheckpointError::MissingShard { .. } => Class::NoInput,
            CheckpointError::Json { .. }
            | CheckpointError::Key { .. }
            | CheckpointError::UnknownModel { .. }
            | CheckpointError::Quantisation { .. }
            | CheckpointError::Packed { .. }
            | CheckpointError::ShardName { .. }
            | CheckpointError::Malformed { .. }
            | CheckpointError::UnknownTensor { .. }
            | CheckpointError::TensorMissing { .. }
            | CheckpointError::Tensor { .. }
            | CheckpointError::Derived { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            CheckpointError::UnknownModel { .. } => Some(Remedy::ListModels),
            _ => None,
        }
    }
}
