//! Mapped files of a checkpoint, and the tensors in them. The checkpoint has one file, or the files
//! that its index names.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path};

use ixc_ir::derived::Extent;
use serde_json::Value as Json;

use super::config;
use super::error::{CheckpointError, HeaderFault};
use super::safetensors::{self, Entry};
use crate::gguf::{Array, GgufError, ShardFile, Value};

/// Name of the index, in checkpoints with several files.
const INDEX: &str = "model.safetensors.index.json";
/// Name of the file, in checkpoints with one file.
pub(super) const SINGLE: &str = "model.safetensors";
/// Maximum number of files.
const MAX_SHARDS: usize = 4096;

/// Text before the number of a machine in file names. In files for all machines, the word of the
/// next constant replaces the number.
const MACHINE_MARK: &str = "-TP-";
const ALL_MACHINES: &str = "common";

/// Tensor of a checkpoint: the number of its file, and its description in that file's header.
pub(super) struct StoredTensor {
    pub file: u32,
    pub entry: Entry,
}

impl StoredTensor {
    /// Returns the file number and byte range of the tensor.
    pub(super) fn extent(&self) -> Extent {
        self.entry.extent(self.file)
    }
}

/// Parts of divided tensors, by tensor name and machine number.
pub(super) type MachineParts = BTreeMap<Box<str>, BTreeMap<u64, StoredTensor>>;

/// All stored tensors of a checkpoint, by name.
pub(super) struct Shards {
    pub folder: Box<Path>,
    pub files: Vec<ShardFile>,
    pub tensors: BTreeMap<Box<str>, StoredTensor>,
    /// Parts of tensors that are divided among several machines.
    pub parts: MachineParts,
}

/// Returns whether a name is a plain file name, without a folder.
pub(super) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

impl Shards {
    pub(super) fn open(folder: &Path) -> Result<Shards, CheckpointError> {
        let index = folder.join(INDEX);
        let (names, weight_map) = match config::read_optional(&index)? {
            Some(value) => {
                let weight_map = weight_map(&index, &value)?;
                let mut names: Vec<Box<str>> = weight_map.values().cloned().collect();
                names.sort_unstable();
                names.dedup();
                (names, Some(weight_map))
            }
            None => (vec![SINGLE.into()], None),
        };
        let names: Vec<(Box<str>, Option<u64>)> = match files_of_machines(folder) {
            files if weight_map.is_none() && !files.is_empty() && !folder.join(SINGLE).is_file() => files,
            _ => names.into_iter().map(|name| (name, None)).collect(),
        };
        if names.len() > MAX_SHARDS {
            return Err(key(&index, "weight_map", format!("names {} files", names.len()), "at most 4096"));
        }
        let mut shards =
            Shards { folder: folder.into(), files: Vec::new(), tensors: BTreeMap::new(), parts: MachineParts::new() };
        for (name, machine) in names {
            let path = folder.join(&*name);
            let file = ShardFile::map_file(&path).map_err(|error| match (&error, &weight_map) {
                (GgufError::Io { source, .. }, Some(weight_map)) if source.kind() == std::io::ErrorKind::NotFound => {
                    let tensor = weight_map.iter().find(|(_, shard)| **shard == name).map(|(tensor, _)| tensor.clone());
                    let (path, missing) = (index.as_path().into(), path.as_path().into());
                    CheckpointError::MissingShard { path, missing, tensor: tensor.unwrap_or_default() }
                }
                _ => CheckpointError::Gguf(error),
            })?;
            let header = safetensors::header(&path, file.data())?;
            let file_number = shards.files.len() as u32;
            for entry in header.tensors {
                // The index assigns tensors to files. A tensor that it omits, or assigns to another
                // file, is ignored.
                if weight_map
                    .as_ref()
                    .is_some_and(|weight_map| weight_map.get(&entry.name).is_none_or(|shard| *shard != name))
                {
                    continue;
                }
                let (name, tensor) = (entry.name.clone(), StoredTensor { file: file_number, entry: entry.clone() });
                let other = match machine {
                    Some(machine) => shards.parts.entry(name).or_default().insert(machine, tensor),
                    None => shards.tensors.insert(name, tensor),
                };
                if other.is_some() {
                    let (path, tensor) = (path.as_path().into(), Some(entry.name));
                    return Err(CheckpointError::Malformed { path, tensor, fault: HeaderFault::Duplicate });
                }
            }
            shards.files.push(file.with_header(header.bytes));
        }
        if let Some(tensor) =
            weight_map.iter().flat_map(|weight_map| weight_map.keys()).find(|name| !shards.tensors.contains_key(*name))
        {
            return Err(CheckpointError::TensorMissing { path: folder.into(), tensor: tensor.clone() });
        }
        Ok(shards)
    }

    /// Adds the file of a sentence-transformers module. Its tensors get the module's name as a
    /// prefix.
    ///
    /// # Errors
    /// When the file cannot be read, or is not a safetensors file.
    pub(super) fn add(&mut self, path: &Path, module: &str) -> Result<(), CheckpointError> {
        let file = ShardFile::map_file(path)?;
        let header = safetensors::header(path, file.data())?;
        let file_number = self.files.len() as u32;
        for entry in header.tensors {
            let name = format!("{module}.{}", entry.name).into();
            self.tensors.insert(name, StoredTensor { file: file_number, entry });
        }
        self.files.push(file.with_header(header.bytes));
        Ok(())
    }

    /// Returns the lengths of all files in bytes.
    pub(super) fn lengths(&self) -> Vec<u64> {
        self.files.iter().map(|file| file.data().len() as u64).collect()
    }

    /// Returns the first bytes of a tensor, at most `max`, if the tensor exists.
    pub(super) fn bytes(&self, name: &str, max: u64) -> Option<&[u8]> {
        let StoredTensor { file, entry } = self.tensors.get(name)?;
        let rest = self.files.get(*file as usize)?.data().get(entry.offset as usize..)?;
        rest.get(..entry.bytes.min(max) as usize)
    }

    /// Copies bytes of a file to `out`. Returns false if they are out of range.
    pub(super) fn fetch(&self, file: u32, offset: u64, out: &mut [u8]) -> bool {
        let data = self.files.get(file as usize).map_or(&[][..], |file| file.data());
        let part = usize::try_from(offset).ok().and_then(|from| data.get(from..)?.get(..out.len()));
        part.map(|part| out.copy_from_slice(part)).is_some()
    }

    /// Returns the error for a tensor with an unexpected shape, type or value.
    pub(super) fn wrong(&self, tensor: &str, found: String, expected: impl Into<Box<str>>) -> CheckpointError {
        let path = self.folder.clone();
        CheckpointError::Tensor { path, tensor: tensor.into(), found: found.into(), expected: expected.into() }
    }
}

fn key(path: &Path, key: &str, found: impl Into<Box<str>>, expected: &str) -> CheckpointError {
    CheckpointError::Key { path: path.into(), key: key.into(), found: found.into(), expected: expected.into() }
}

/// Reads `weight_map` of an index: the file name for each tensor.
fn weight_map(index: &Path, value: &Json) -> Result<HashMap<Box<str>, Box<str>>, CheckpointError> {
    let map = value.get("weight_map").and_then(Json::as_object);
    let map = map.ok_or_else(|| {
        key(index, "weight_map", "missing, or not an object", "an object with a file name for each tensor")
    })?;
    map.iter()
        .map(|(tensor, shard)| {
            let shard = shard.as_str().ok_or_else(|| key(index, tensor, "not a text", "the name of a file"))?;
            match is_plain(shard) {
                true => Ok((tensor.as_str().into(), shard.into())),
                false => Err(CheckpointError::ShardName { path: index.into(), shard: shard.into() }),
            }
        })
        .collect()
}

/// Returns the files of a folder that is divided among machines, in order, each with its machine
/// number. The number is `None` for a file that all machines use.
fn files_of_machines(folder: &Path) -> Vec<(Box<str>, Option<u64>)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(super::MAX_ENTRIES).filter_map(Result::ok);
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (_, of) = name.strip_suffix(".safetensors")?.rsplit_once(MACHINE_MARK)?;
            let machine = if of == ALL_MACHINES { None } else { Some(of.parse().ok()?) };
            Some((name.into(), machine))
        })
        .collect();
    files.sort_unstable();
    files
}

/// Returns whether a folder has weights.
pub(super) fn has_weights(folder: &Path) -> bool {
    folder.join(INDEX).is_file() || folder.join(SINGLE).is_file() || !files_of_machines(folder).is_empty()
}

/// Returns a hint for the user of a folder without weights, from the files that it has.
pub(super) fn hint(folder: &Path) -> &'static str {
    let has = |name: &str| folder.join(name).exists();
    if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
        "pytorch_model.bin is a pickle, which is not supported: save the model as safetensors (transformers: save_pretrained)"
    } else if has("_layer_0") {
        "KTransformers' .kt files contain only experts: convert the model with convert_cpu_weights.py without --no-merge-safetensor, which also copies the other tensors"
    } else if has("model-00001.safetensors") {
        "model-00001.safetensors without an index is the output of KTransformers' merge_cpu_weights.py, which has only experts: convert the model with convert_cpu_weights.py, which also copies the other tensors"
    } else if has("consolidated.safetensors") || has("consolidated.safetensors.index.json") {
        "consolidated.safetensors has Mistral's own layout, which is not supported: download the files in Hugging Face's layout"
    } else {
        "download the model's safetensors files, too"
    }
}

/// Maximum number of integers in a tensor that becomes a key.
const MAX_NUMBERS: u64 = 1 << 16;

/// Returns the integers of the first tensor whose name ends with `end`, if there is one.
///
/// # Errors
/// When the tensor is not a vector of eight-byte integers.
pub(super) fn numbers(shards: &Shards, end: &str) -> Result<Option<Value>, CheckpointError> {
    let Some((name, StoredTensor { file, entry })) = shards.tensors.iter().find(|(name, _)| name.ends_with(end)) else {
        return Ok(None);
    };
    let bytes = shards.files[*file as usize].data().get(entry.offset as usize..).and_then(|rest| {
        let count = entry.shape.first().copied().filter(|count| entry.shape.len() == 1 && *count <= MAX_NUMBERS)?;
        rest.get(..8 * count as usize).filter(|_| entry.dtype.name == "I64")
    });
    let bytes = bytes.ok_or_else(|| {
        let expected = format!("a vector of I64 with at most {MAX_NUMBERS} elements");
        shards.wrong(name, format!("{:?} of {}", entry.shape, entry.dtype.name), expected)
    })?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(Some(Value::Array(Array::I64(words.iter().map(|word| i64::from_le_bytes(*word)).collect()))))
}

/// Returns a number for each layer, from the layers' one-element tensors, whose names end with
/// `end`.
///
/// # Errors
/// When a layer's number is missing or has another type.
pub(super) fn layer_numbers(shards: &Shards, end: &str, layers: u64) -> Result<Value, CheckpointError> {
    let layer_of = |name: &str| -> Option<u64> {
        let (before, layer) = name.strip_suffix(end)?.strip_suffix('.')?.rsplit_once('.')?;
        layer.parse().ok().filter(|_| before.ends_with("layers"))
    };
    let mut found = BTreeMap::new();
    for (name, tensor) in &shards.tensors {
        let Some(layer) = layer_of(name).filter(|layer| *layer < layers) else { continue };
        found.insert(layer, one_number(shards, name, tensor)?);
    }
    if let Some(layer) = (0..layers).find(|layer| !found.contains_key(layer)) {
        let tensor = format!("model.layers.{layer}.{end}").into();
        return Err(CheckpointError::TensorMissing { path: shards.folder.clone(), tensor });
    }
    Ok(Value::Array(Array::F32(found.into_values().collect())))
}

fn one_number(shards: &Shards, name: &str, tensor: &StoredTensor) -> Result<f32, CheckpointError> {
    let StoredTensor { file, entry } = tensor;
    let bytes = shards.files[*file as usize].data().get(entry.offset as usize..).unwrap_or_default();
    let is_one = entry.shape.iter().all(|len| *len == 1);
    match (entry.dtype.name, bytes) {
        ("F32", [a, b, c, d, ..]) if is_one => Ok(f32::from_le_bytes([*a, *b, *c, *d])),
        // A bf16 number is the upper half of an f32.
        ("BF16", [c, d, ..]) if is_one => Ok(f32::from_le_bytes([0, 0, *c, *d])),
        (dtype, _) => {
            let weight_map = format!("{:?} of {dtype}", entry.shape);
            Err(shards.wrong(name, weight_map, "one number as F32 or BF16"))
        }
    }
}

/// Returns the value of a one-element tensor, if it exists.
pub(super) fn number(shards: &Shards, name: &str) -> Result<Option<f32>, CheckpointError> {
    match shards.tensors.get(name) {
        Some(tensor) => one_number(shards, name, tensor).map(Some),
        None => Ok(None),
    }
}
