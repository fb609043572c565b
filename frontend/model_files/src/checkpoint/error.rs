//! Errors of folders of safetensors. Each states the file, tensor or key.

use std::path::Path;

use ixc_failure::{Class, Remedy};
use ixc_files::{ReadError, is_not_regular};
use ixc_ir::derived::DerivedError;

use crate::gguf::{GgufError, among, quote};

/// Reason why a folder cannot be used as a model.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The GGUF reader refuses a file, or the keys and tensors that a folder is presented as.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file is not JSON, or its JSON has an unexpected structure.
    #[error("{}: {source}", path.display())]
    Json {
        /// Path of the JSON file.
        path: Box<Path>,
        /// Error of the JSON parser, with its position in the file.
        source: serde_json::Error,
    },
    /// A key of a JSON file is missing, or its value has another type.
    #[error("{}: key \"{}\" is {found}; expected {expected}", path.display(), quote(key))]
    Key {
        /// JSON file.
        path: Box<Path>,
        /// Key that is missing or has an unexpected value.
        key: Box<str>,
        /// Type of the value, or "missing".
        found: Box<str>,
        /// Expected type.
        expected: Box<str>,
    },
    /// The table of families has no row for the model type.
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
    /// The quantisation method is not supported.
    #[error("{}: quantisation \"{}\" is not supported; expected fp8, mxfp4, modelopt, gptq, awq, auto-round, bitsandbytes or compressed-tensors (docs/inputs.md has their formats)", path.display(), quote(found))]
    Quantisation {
        /// The configuration file.
        path: Box<Path>,
        /// Method in the configuration.
        found: Box<str>,
    },
    /// KTransformers' converter packed experts in an unsupported layout.
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
    /// A file that the index names is missing.
    #[error("{}: shard {} is missing; it contains tensor \"{}\"", path.display(), missing.display(), quote(tensor))]
    MissingShard {
        /// The index file.
        path: Box<Path>,
        /// The missing file.
        missing: Box<Path>,
        /// Name of a tensor that the index assigns to the missing file.
        tensor: Box<str>,
    },
    /// The index names a shard that is not a plain file name.
    #[error("{}: shard \"{}\" is not a file name; expected a file in the same folder", path.display(), quote(shard))]
    ShardName {
        /// The index file.
        path: Box<Path>,
        /// Shard name in the index.
        shard: Box<str>,
    },
    /// A file is not valid safetensors.
    #[error("{}: {}{fault}", path.display(), tensor.as_deref().map(|name| format!("tensor \"{}\": ", quote(name))).unwrap_or_default())]
    Malformed {
        /// Invalid safetensors file.
        path: Box<Path>,
        /// Name of the malformed tensor, if the fault concerns one.
        tensor: Option<Box<str>>,
        /// Fault in the file's header.
        fault: HeaderFault,
    },
    /// The model's family has no rule for a tensor.
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
    /// A tensor cannot be derived from the stored tensors.
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

/// Reason why packed experts cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PackedFault {
    /// The tensor's name belongs to none of the supported packing methods.
    #[error(" by an unsupported method (AWQ, perhaps); supported methods are int8 and int4")]
    Name,
    /// The largest integer of a row does not have the expected value.
    #[error(
        " for kernels other than AMX (moe_int8 or moe_int4, perhaps), whose order is not supported: the largest integer of row {row} is {found}; method {method} would have {expected}"
    )]
    Order {
        /// Index of the row.
        row: usize,
        /// Largest integer in the row, if the expected method packed it.
        found: f32,
        /// Packing method that was expected.
        method: &'static str,
        /// Largest integer that this method writes in each row.
        expected: u8,
    },
}

/// Fault in the header of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The file is too short to have a header length.
    #[error("has {found} bytes; a safetensors file begins with 8 bytes, the length of its header")]
    Short {
        /// Size of the file in bytes.
        found: u64,
    },
    /// The header is longer than the file, or longer than the limit.
    #[error("has a header of {found} bytes; the header must end inside the file and have at most {limit} bytes")]
    Length {
        /// Length that the file states, in bytes.
        found: u64,
        /// Maximum length in bytes.
        limit: u64,
    },
    /// Two tensors have the same name.
    #[error("appears twice")]
    Duplicate,
    /// The file has more tensors than the limit.
    #[error("has more than {limit} tensors")]
    Count {
        /// Maximum number of tensors.
        limit: usize,
    },
    /// A tensor has a type that does not exist.
    #[error("has type \"{}\", which is not a type of safetensors files", quote(found))]
    Type {
        /// Name of the type in the header.
        found: Box<str>,
    },
    /// The shape of a tensor needs another number of bytes than the tensor has.
    #[error("has {found} bytes; its shape {shape:?} of {dtype} takes {expected} bytes")]
    Bytes {
        /// Shape of the tensor.
        shape: Box<[u64]>,
        /// Type of the tensor.
        dtype: &'static str,
        /// Number of bytes of the tensor.
        found: u64,
        /// Number of bytes that the shape needs.
        expected: u128,
    },
    /// Offsets of a tensor are not ascending, or are outside of the file.
    #[error("has data_offsets {begin} to {end}; they must ascend and end in the file's {limit} bytes of data")]
    Offsets {
        /// Offset of the tensor's first byte, from the start of the data.
        begin: u64,
        /// Offset after the tensor's last byte, from the start of the data.
        end: u64,
        /// Number of bytes of data in the file.
        limit: u64,
    },
    /// A tensor does not begin where the previous tensor ends.
    #[error("begins at byte {begin} of the file's data; expected byte {expected}, where the previous tensor ends")]
    Gap {
        /// Offset at which the tensor begins.
        begin: u64,
        /// Offset at which the previous tensor ends.
        expected: u64,
    },
    /// The file has data after the last tensor.
    #[error("has {found} bytes of data; expected {expected}, where the last tensor ends")]
    Rest {
        /// Number of bytes of data in the file.
        found: u64,
        /// Offset at which the last tensor ends.
        expected: u64,
    },
}

impl CheckpointError {
    /// Returns the class of the error, which determines the exit code.
    pub fn class(&self) -> Class {
        match self {
            CheckpointError::Gguf(error) => error.class(),
            // The folder exists, but the file in it is a pipe or a device.
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

    /// Returns the change that may help the user.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            CheckpointError::UnknownModel { .. } => Some(Remedy::ListModels),
            _ => None,
        }
    }
}
