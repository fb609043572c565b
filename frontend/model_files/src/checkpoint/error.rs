//! Errors of folders of safetensors, with the file, tensor or key.

use std::path::Path;

use ixc_failure::{Class, Remedy};
use ixc_files::{ReadError, is_not_regular};
use ixc_ir::derived::DerivedError;

use crate::gguf::{GgufError, among, quote};

/// Reason why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// An error in a GGUF file, or in files that are presented as one.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A file that cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A text that is not JSON, or has an unexpected structure.
    #[error("{}: {source}", path.display())]
    Json {
        /// File with the text.
        path: Box<Path>,
        /// Fault and its position in the text.
        source: serde_json::Error,
    },
    /// A key of a JSON file is missing, or its value has another type.
    #[error("{}: key \"{}\" is {found}; expected {expected}", path.display(), quote(key))]
    Key {
        /// JSON file.
        path: Box<Path>,
        /// Key that is missing, or has the value.
        key: Box<str>,
        /// Type of the value.
        found: Box<str>,
        /// Expected type.
        expected: Box<str>,
    },
    /// A model type without a row in the table.
    #[error(
        "{}: model_type \"{}\" is not supported as safetensors; supported are {}",
        path.display(), quote(found), among(found, known)
    )]
    UnknownModel {
        /// Path of the configuration.
        path: Box<Path>,
        /// Model type in the configuration.
        found: Box<str>,
        /// Known model types.
        known: Vec<&'static str>,
    },
    /// A quantisation method that is not supported.
    #[error("{}: quantisation \"{}\" is not supported; expected fp8, mxfp4, modelopt, gptq, awq, auto-round, bitsandbytes or compressed-tensors (docs/inputs.md has their formats)", path.display(), quote(found))]
    Quantisation {
        /// The configuration file.
        path: Box<Path>,
        /// Method in the configuration.
        found: Box<str>,
    },
    /// Experts that KTransformers' converter packed in an unsupported layout.
    #[error("{}: tensor \"{}\" has experts packed by KTransformers{fault}; use the folder that they were converted from", path.display(), quote(tensor))]
    StackedExperts {
        /// Path of the folder.
        path: Box<Path>,
        /// Name of a packed tensor.
        tensor: Box<str>,
        /// Reason why the layout is not supported.
        fault: PackedFault,
    },
    /// The folder has no weights.
    #[error("{}: is a Hugging Face folder without model.safetensors or model.safetensors.index.json: {hint}", path.display())]
    NoWeights {
        /// Path of the folder.
        path: Box<Path>,
        /// Hint about other files in the folder.
        hint: &'static str,
    },
    /// A file of the index is missing.
    #[error("{}: shard {} is missing; it contains tensor \"{}\"", path.display(), missing.display(), quote(tensor))]
    MissingShard {
        /// The index file.
        path: Box<Path>,
        /// The missing file.
        missing: Box<Path>,
        /// Name of a tensor in the missing file.
        tensor: Box<str>,
    },
    /// A name of a shard that is not the name of a file in the folder.
    #[error("{}: shard \"{}\" is not a file name; expected a file in the same folder", path.display(), quote(shard))]
    ShardName {
        /// The index file.
        path: Box<Path>,
        /// Shard name in the index.
        shard: Box<str>,
    },
    /// A file that is not valid safetensors.
    #[error("{}: {}{fault}", path.display(), tensor.as_deref().map(|name| format!("tensor \"{}\": ", quote(name))).unwrap_or_default())]
    Malformed {
        /// Invalid safetensors file.
        path: Box<Path>,
        /// Name of the malformed tensor, if the fault concerns one.
        tensor: Option<Box<str>>,
        /// Fault of the header.
        fault: HeaderFault,
    },
    /// A tensor without a rule in the model's row.
    #[error("{}: tensor \"{}\" does not belong to model {model}", path.display(), quote(tensor))]
    UnknownTensor {
        /// Path of the folder.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Name of the model.
        model: &'static str,
    },
    /// A tensor is missing.
    #[error("{}: tensor \"{}\" is missing", path.display(), quote(tensor))]
    TensorMissing {
        /// Path of the folder.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
    },
    /// A tensor has another shape or type than required.
    #[error("{}: tensor \"{}\" is {found}; expected {expected}", path.display(), quote(tensor))]
    Tensor {
        /// Path of the folder.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Shape or type of the tensor.
        found: Box<str>,
        /// Required shape or type.
        expected: Box<str>,
    },
    /// A tensor that cannot be derived from the stored tensors.
    #[error("{}: tensor \"{}\": {source}", path.display(), quote(tensor))]
    Derived {
        /// Path of the folder.
        path: Box<Path>,
        /// Name of the derived tensor.
        tensor: Box<str>,
        /// Reason of the failure.
        source: DerivedError,
    },
}

/// Reason why packed experts are not read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PackedFault {
    /// A tensor name that belongs to none of the supported methods.
    #[error(" by an unsupported method (AWQ, perhaps); supported are int8 and int4")]
    Name,
    /// Rows whose largest integer does not have the expected value.
    #[error(
        " for kernels other than AMX (moe_int8 or moe_int4, perhaps), whose order is not supported: the largest number of row {row} is {found}; {method} has {expected}"
    )]
    Order {
        /// Index of the row.
        row: usize,
        /// Largest integer of the row, as read.
        found: f32,
        /// Expected method.
        method: &'static str,
        /// Expected largest integer.
        expected: u8,
    },
}

/// Fault in a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The file is shorter than the length of the header.
    #[error("has {found} bytes; a safetensors file begins with 8 bytes, the length of its header")]
    Short {
        /// Size of the file in bytes.
        found: u64,
    },
    /// A header that is longer than the file, or longer than the limit.
    #[error("has a header length of {found} bytes; the header must end in the file and have at most {limit} bytes")]
    Length {
        /// Length that the file claims.
        found: u64,
        /// Maximum length.
        limit: u64,
    },
    /// A name that appears twice.
    #[error("appears twice")]
    Duplicate,
    /// More tensors than the limit.
    #[error("has more than {limit} tensors")]
    Count {
        /// Maximum number of tensors.
        limit: usize,
    },
    /// A type that does not exist.
    #[error("has type \"{}\", which safetensors files do not have", quote(found))]
    Type {
        /// Name of the type in the header.
        found: Box<str>,
    },
    /// A shape that needs another number of bytes than the tensor has.
    #[error("has {found} bytes; shape {shape:?} of {dtype} takes {expected}")]
    Bytes {
        /// Shape of the tensor.
        shape: Box<[u64]>,
        /// Type of the tensor.
        dtype: &'static str,
        /// Bytes of the tensor.
        found: u64,
        /// Bytes that the shape needs.
        expected: u128,
    },
    /// Offsets that are not ascending, or outside of the file.
    #[error("data_offsets are {begin} to {end}; the file has {limit} bytes of data")]
    Offsets {
        /// Offset of the first byte in the data.
        begin: u64,
        /// End, exclusive.
        end: u64,
        /// Bytes of data.
        limit: u64,
    },
    /// A tensor that does not begin at the end of the previous one.
    #[error("begins at byte {begin} of the data; the tensor before it ends at {expected}")]
    Gap {
        /// Begin of the tensor.
        begin: u64,
        /// End of the previous tensor.
        expected: u64,
    },
    /// Data after the last tensor.
    #[error("has {found} bytes of data; its tensors end at {expected}")]
    Rest {
        /// Bytes of data in the file.
        found: u64,
        /// End of the last tensor.
        expected: u64,
    },
}

impl CheckpointError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            CheckpointError::Gguf(error) => error.class(),
            // The folder exists, and the file in it is a pipe or a device.
            CheckpointError::Read(ReadError::Io { source, .. }) if is_not_regular(source) => Class::Io,
            CheckpointError::Read(error) => error.class(),
            CheckpointError::NoWeights { .. } | CheckpointError::MissingShard { .. } => Class::NoInput,
            CheckpointError::Json { .. }
            | CheckpointError::Key { .. }
            | CheckpointError::UnknownModel { .. }
            | CheckpointError::Quantisation { .. }
            | CheckpointError::StackedExperts { .. }
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
