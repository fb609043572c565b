//! Mapped files of a checkpoint, one or those that its index names, and the tensors in them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path};

use ixc_ir::derived::{Change, Element, Extent, ScaleKind, Scales};
use serde_json::Value as Json;

use super::array::Array;
use super::codebook;
use super::config::{self, Config};
use super::error::{CheckpointError, HeaderFault};
use super::families::Family;
use super::integers::Scheme;
use super::parts::{self, Parts};
use super::safetensors::{self, Entry};
use super::targets::Targets;
use crate::gguf::{Array as Integers, GgufError, ShardFile, Value};

/// Index of a checkpoint with several files.
const INDEX: &str = "model.safetensors.index.json";
/// File of a checkpoint with one file.
pub(super) const SINGLE: &str = "model.safetensors";
/// Maximum number of files.
const MAX_SHARDS: usize = 4096;

/// All stored tensors of a checkpoint, by name.
pub(super) struct Shards {
    pub folder: Box<Path>,
    pub files: Vec<ShardFile>,
    /// File index and entry of each tensor.
    pub tensors: BTreeMap<Box<str>, (u32, Entry)>,
    /// Tensors that are divided among several machines.
    pub parts: Parts,
}

/// Returns whether a name is that of a file in the folder itself.
pub(super) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

impl Shards {
    pub(super) fn open(folder: &Path) -> Result<Shards, CheckpointError> {
        let index = folder.join(INDEX);
        let (names, said) = match config::read_optional(&index)? {
            Some(value) => {
                let said = weight_map(&index, &value)?;
                let mut names: Vec<Box<str>> = said.values().cloned().collect();
                names.sort();
                names.dedup();
                (names, Some(said))
            }
            None => (vec![SINGLE.into()], None),
        };
        let names: Vec<(Box<str>, Option<u64>)> = match parts::files(folder) {
            files if said.is_none() && !files.is_empty() && !folder.join(SINGLE).is_file() => files,
            _ => names.into_iter().map(|name| (name, None)).collect(),
        };
        if names.len() > MAX_SHARDS {
            return Err(key(&index, "weight_map", format!("names {} files", names.len()), "at most 4096"));
        }
        let mut shards =
            Shards { folder: folder.into(), files: Vec::new(), tensors: BTreeMap::new(), parts: Parts::new() };
        for (name, machine) in names {
            let path = folder.join(&*name);
            let file = ShardFile::mapped(&path).map_err(|error| match (&error, &said) {
                (GgufError::Io { source, .. }, Some(said)) if source.kind() == std::io::ErrorKind::NotFound => {
                    let tensor = said.iter().find(|(_, shard)| **shard == name).map(|(tensor, _)| tensor.clone());
                    let (path, missing) = (index.as_path().into(), path.as_path().into());
                    CheckpointError::MissingShard { path, missing, tensor: tensor.unwrap_or_default() }
                }
                _ => CheckpointError::Gguf(error),
            })?;
            let header = safetensors::header(&path, file.data())?;
            let number = shards.files.len() as u32;
            for entry in header.tensors {
                // The index assigns tensors to files. Tensors that it omits, or assigns to another
                // file, are not read.
                if said.as_ref().is_some_and(|said| said.get(&entry.name).is_none_or(|shard| *shard != name)) {
                    continue;
                }
                let (stored, place) = (entry.name.clone(), (number, entry.clone()));
                let other = match machine {
                    Some(machine) => shards.parts.entry(stored).or_default().insert(machine, place),
                    None => shards.tensors.insert(stored, place),
                };
                if other.is_some() {
                    let (path, tensor) = (path.as_path().into(), Some(entry.name));
                    return Err(CheckpointError::Malformed { path, tensor, fault: HeaderFault::Duplicate });
                }
            }
            shards.files.push(file.with_header(header.bytes));
        }
        if let Some(tensor) = said.iter().flat_map(|said| said.keys()).find(|name| !shards.tensors.contains_key(*name))
        {
            return Err(CheckpointError::TensorMissing { path: folder.into(), tensor: tensor.clone() });
        }
        Ok(shards)
    }

    /// Adds the file of a module; its tensors get the module's name as a prefix.
    ///
    /// # Errors
    /// When the file cannot be read, or is not a safetensors file.
    pub(super) fn add(&mut self, path: &Path, module: &str) -> Result<(), CheckpointError> {
        let file = ShardFile::mapped(path)?;
        let header = safetensors::header(path, file.data())?;
        let number = self.files.len() as u32;
        for entry in header.tensors {
            self.tensors.insert(format!("{module}.{}", entry.name).into(), (number, entry));
        }
        self.files.push(file.with_header(header.bytes));
        Ok(())
    }

    /// Returns the lengths of all files.
    pub(super) fn lengths(&self) -> Vec<u64> {
        self.files.iter().map(|file| file.data().len() as u64).collect()
    }

    /// Returns the first bytes of a tensor, if it exists.
    pub(super) fn bytes(&self, name: &str, most: u64) -> Option<&[u8]> {
        let (file, entry) = self.tensors.get(name)?;
        let rest = self.files.get(*file as usize)?.data().get(entry.offset as usize..)?;
        rest.get(..entry.bytes.min(most) as usize)
    }

    /// Copies bytes of a file; returns false if they are out of range.
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

/// Reads `weight_map` of an index: tensors and the names of their files.
fn weight_map(index: &Path, value: &Json) -> Result<HashMap<Box<str>, Box<str>>, CheckpointError> {
    let map = value.get("weight_map").and_then(Json::as_object);
    let map = map.ok_or_else(|| key(index, "weight_map", "missing, or no object", "an object of names of files"))?;
    map.iter()
        .map(|(tensor, shard)| {
            let shard = shard.as_str().ok_or_else(|| key(index, tensor, "no text", "the name of a file"))?;
            match is_plain(shard) {
                true => Ok((tensor.as_str().into(), shard.into())),
                false => Err(CheckpointError::ShardName { path: index.into(), shard: shard.into() }),
            }
        })
        .collect()
}

/// Returns whether a folder has weights.
pub(super) fn has_weights(folder: &Path) -> bool {
    folder.join(INDEX).is_file() || folder.join(SINGLE).is_file() || !parts::files(folder).is_empty()
}

/// Returns a hint about the files of a folder without weights.
pub(super) fn hint(folder: &Path) -> &'static str {
    let has = |name: &str| folder.join(name).exists();
    if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
        "pytorch_model.bin is a pickle, which is not supported: save the model as safetensors (transformers: save_pretrained)"
    } else if has("_layer_0") {
        "KTransformers' .kt files contain only experts, one for each matrix and node: convert without --no-merge-safetensor (convert_cpu_weights.py), which copies the other tensors"
    } else if has("model-00001.safetensors") {
        "model-00001.safetensors without an index is the output of KTransformers' merge_cpu_weights.py, which has only experts: convert_cpu_weights.py copies the other tensors"
    } else if has("consolidated.safetensors") || has("consolidated.safetensors.index.json") {
        "consolidated.safetensors has Mistral's own layout, which is not supported: use the files of the Hugging Face layout"
    } else {
        "download the files of the model, too"
    }
}

/// Quantisation of a checkpoint's weights.
#[derive(Clone, Debug)]
pub(super) struct Quantisation {
    /// Rows and columns of a block that shares a scale, if stated.
    block: Option<[u64; 2]>,
    /// Schemes of integer matrices, by module name; `None` for floats.
    integers: Targets<Option<Scheme>>,
    /// Whether matrices may be codes of four bits.
    codes: bool,
}

/// Name ending of a module's matrix.
const MATRIX: &str = ".weight";
/// Format name of compressed-tensors if each group has its own format.
const MIXED: &str = "mixed-precision";
/// Formats of floats. Their four-bit weights have other tensor names than integers.
const OF_FLOATS: [&str; 4] = ["float-quantized", "naive-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized"];

impl Quantisation {
    /// Reads `quantization_config` of the configuration.
    pub(super) fn read(config: &Config) -> Result<Quantisation, CheckpointError> {
        let none = Quantisation { block: None, integers: Targets::none(), codes: false };
        let Some(said) = config.object("quantization_config")? else { return Ok(none) };
        if let Some(integers) = Scheme::read(&said)? {
            return Ok(Quantisation { integers: Targets::all(Some(integers)), ..none });
        }
        let refused = |found: &str| CheckpointError::Quantisation { path: config.path().into(), found: found.into() };
        let is_four_bits = || Ok::<_, CheckpointError>(said.flag(&["load_in_4bit", "_load_in_4bit"])?.unwrap_or(false));
        let method = match said.text(&["quant_method"])? {
            Some(method) => method,
            // Transformers wrote no method before it had several.
            None if is_four_bits()? => "bitsandbytes",
            None => "none",
        };
        match method {
            "bitsandbytes" => return Ok(Quantisation { codes: true, ..none }),
            "fp8" | "mxfp4" => {}
            // NVIDIA's ModelOpt.
            "modelopt" => match said.text(&["quant_algo"])?.unwrap_or("FP8") {
                "FP8" | "NVFP4" | "W4A16_NVFP4" | "MIXED_PRECISION" => {}
                other => return Err(refused(&format!("{method}, {other}"))),
            },
            "compressed-tensors" => {}
            other => return Err(refused(other)),
        }
        let mut block = said.counts("weight_block_size")?;
        let mut integers = Targets::none();
        if method == "compressed-tensors" {
            let format = said.text(&["format"])?.unwrap_or("float-quantized");
            let groups = groups(&said)?;
            if groups.is_empty() && Scheme::FORMATS.contains(&format) {
                return Err(said.wrong("config_groups", "without weights", "a group_0 with weights"));
            }
            let is_known = |format: &str| OF_FLOATS.contains(&format) || Scheme::FORMATS.contains(&format);
            if !is_known(format) && format != MIXED {
                return Err(refused(&format!("{method}, {format}")));
            }
            for (group, weights) in &groups {
                let own =
                    group.text(&["format"])?.unwrap_or(if format == MIXED { usual(group, weights)? } else { format });
                if !is_known(own) {
                    return Err(refused(&format!("{method}, {own}")));
                }
                let scheme = Scheme::compressed(weights, own)?;
                block = block.map_or_else(|| weights.counts("block_structure"), |block| Ok(Some(block)))?;
                // A single group applies to all quantised modules.
                if groups.len() == 1 {
                    integers = Targets::all(scheme);
                    break;
                }
                let targets = group.texts("targets")?;
                for target in targets.ok_or_else(|| group.wrong("targets", "missing", "an array of texts"))? {
                    integers.add(group, target, scheme)?;
                }
            }
        }
        let block = block.map(|block| match block[..] {
            [rows, columns] if rows > 0 && columns > 0 => Ok([u64::from(rows), u64::from(columns)]),
            _ => Err(said.wrong("weight_block_size", format!("{block:?}"), "two counts: rows and columns")),
        });
        Ok(Quantisation { block: block.transpose()?, integers, codes: false })
    }

    /// Returns the scheme of an integer matrix. A matrix outside of a module goes by its own name.
    fn scheme(&self, name: &str) -> Option<Scheme> {
        let matrix = name.strip_suffix(PACKED).unwrap_or(name);
        self.integers.of(matrix.strip_suffix(MATRIX).unwrap_or(matrix)).flatten()
    }
}

/// Returns the groups of compressed-tensors that quantise weights, with their weight settings.
fn groups(said: &Config) -> Result<Vec<(Config, Config)>, CheckpointError> {
    let Some(all) = said.object("config_groups")? else { return Ok(Vec::new()) };
    let mut groups = Vec::new();
    for name in all.keys() {
        if let Some(group) = all.object(name)?
            && let Some(weights) = group.object("weights")?
        {
            groups.push((group, weights));
        }
    }
    Ok(groups)
}

/// Returns the default format of a group's weights (compressed-tensors, `infer_module_format`).
fn usual(group: &Config, weights: &Config) -> Result<&'static str, CheckpointError> {
    let bits = weights.count(&["num_bits"])?.unwrap_or(8);
    Ok(match (weights.text(&["type"])?.unwrap_or("int"), bits) {
        ("int", 8) if group.has("input_activations") => "int-quantized",
        ("int", _) => "pack-quantized",
        (_, 4) => "nvfp4-pack-quantized",
        _ => "float-quantized",
    })
}

/// Types of bytes that hold two four-bit numbers.
const CODES: [&str; 2] = ["I8", "U8"];
/// Name ending of such weights in some checkpoints.
const PACKED: &str = "_packed";
/// Name endings of scales of activations, which are not quantised here.
const OF_ACTIVATIONS: [&str; 5] = [".input_scale", ".input_global_scale", ".activation_scale", ".k_scale", ".v_scale"];
/// Name endings of the number that multiplies an NVFP4 matrix, and of the number that divides it
/// (ModelOpt, compressed-tensors).
const FACTORS: [(&str, Change); 2] = [("_scale_2", Change::Keep), ("_global_scale", Change::Inverse)];

/// Numbers of machines among which matrices were divided by rows before quantisation: those of
/// published models, and one.
const RANKS: [u64; 3] = [8, 4, 1];
/// Maximum number of integers in a key.
const MAX_NUMBERS: u64 = 1 << 16;

/// Returns the integers of the first tensor whose name ends with `end`, if one exists.
///
/// # Errors
/// When the tensor is not a vector of eight-byte integers.
pub(super) fn numbers(shards: &Shards, end: &str) -> Result<Option<Value>, CheckpointError> {
    let Some((name, (file, entry))) = shards.tensors.iter().find(|(name, _)| name.ends_with(end)) else {
        return Ok(None);
    };
    let bytes = shards.files[*file as usize].data().get(entry.offset as usize..).and_then(|rest| {
        let count = entry.shape.first().copied().filter(|count| entry.shape.len() == 1 && *count <= MAX_NUMBERS)?;
        rest.get(..8 * count as usize).filter(|_| entry.dtype.name == "I64")
    });
    let bytes = bytes.ok_or_else(|| {
        let expected = format!("a vector of I64, of at most {MAX_NUMBERS}");
        shards.wrong(name, format!("{:?} of {}", entry.shape, entry.dtype.name), expected)
    })?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(Some(Value::Array(Integers::I64(words.iter().map(|word| i64::from_le_bytes(*word)).collect()))))
}

/// Returns a number for each layer, from one-element tensors whose names end with `end`.
///
/// # Errors
/// When a layer's number is missing or has another type.
pub(super) fn numbers_of_layers(shards: &Shards, end: &str, layers: u64) -> Result<Value, CheckpointError> {
    let layer_of = |name: &str| -> Option<u64> {
        let (before, layer) = name.strip_suffix(end)?.strip_suffix('.')?.rsplit_once('.')?;
        layer.parse().ok().filter(|_| before.ends_with("layers"))
    };
    let mut found = BTreeMap::new();
    for (name, (file, entry)) in &shards.tensors {
        let Some(layer) = layer_of(name).filter(|layer| *layer < layers) else { continue };
        found.insert(layer, one_number(shards, name, *file, entry)?);
    }
    if let Some(layer) = (0..layers).find(|layer| !found.contains_key(layer)) {
        let tensor = format!("model.layers.{layer}.{end}").into();
        return Err(CheckpointError::TensorMissing { path: shards.folder.clone(), tensor });
    }
    Ok(Value::Array(Integers::F32(found.into_values().collect())))
}

fn one_number(shards: &Shards, name: &str, file: u32, entry: &Entry) -> Result<f32, CheckpointError> {
    let bytes = shards.files[file as usize].data().get(entry.offset as usize..).unwrap_or_default();
    let is_one = entry.shape.iter().all(|len| *len == 1);
    match (entry.dtype.name, bytes) {
        ("F32", [a, b, c, d, ..]) if is_one => Ok(f32::from_le_bytes([*a, *b, *c, *d])),
        // bf16 is the upper half of an f32.
        ("BF16", [c, d, ..]) if is_one => Ok(f32::from_le_bytes([0, 0, *c, *d])),
        (dtype, _) => {
            let said = format!("{:?} of {dtype}", entry.shape);
            Err(shards.wrong(name, said, "a number of F32 or BF16"))
        }
    }
}

/// Returns the value of a one-element tensor, if it exists.
pub(super) fn number(shards: &Shards, name: &str) -> Result<Option<f32>, CheckpointError> {
    match shards.tensors.get(name) {
        Some((file, entry)) => one_number(shards, name, *file, entry).map(Some),
        None => Ok(None),
    }
}

/// Returns the number of machines that quantised FP8 matrices, each its own rows: the number that
/// fits the scales, otherwise 1. `ends` are the name endings of these matrices.
fn ranks(shards: &Shards, of: &Quantisation, ends: &[&str]) -> u64 {
    let Some([block, _]) = of.block else { return 1 };
    let of_ends = shards.tensors.iter().filter(|(name, _)| ends.iter().any(|end| name.ends_with(end)));
    let shapes: Vec<[u64; 2]> = of_ends
        .filter_map(|(name, (_, entry))| {
            let (_, scales) = shards.tensors.get(&*format!("{name}_scale_inv"))?;
            Some([*entry.shape.first()?, *scales.shape.first()?])
        })
        .collect();
    let fits = |ranks: &u64| {
        shapes.iter().all(|[rows, scales]| {
            rows.is_multiple_of(*ranks) && (rows / ranks).div_ceil(block).checked_mul(*ranks) == Some(*scales)
        })
    };
    RANKS.into_iter().find(|ranks| !shapes.is_empty() && fits(ranks)).unwrap_or(1)
}

/// Returns weights with their scales, by the names that they have without quantisation. A matrix
/// listed in `by_rank` that several machines quantised becomes several matrices, from `weight.0`
/// on. Vectors with a factor vector get it as their scales.
pub(super) fn weights(
    shards: &Shards,
    of: &Quantisation,
    &Family { by_rank, multiplied, .. }: &Family,
) -> Result<BTreeMap<Box<str>, Array>, CheckpointError> {
    // Each scheme once, because each is asked about each tensor.
    let mut schemes: Vec<Scheme> = Vec::new();
    for scheme in of.integers.values().flatten() {
        if !schemes.contains(&scheme) {
            schemes.push(scheme);
        }
    }
    let reader = WeightReader { shards, of, schemes, by_rank, multiplied, ranks: ranks(shards, of, by_rank) };
    let mut weights = BTreeMap::new();
    for (name, stored) in shards.tensors.iter().filter(|(name, _)| !reader.is_scale(name)) {
        match reader.quantised(name, stored)? {
            Some((name, array)) => {
                weights.insert(name, array);
            }
            None => weights.extend(reader.numbers(name, stored)?),
        }
    }
    Ok(weights)
}

/// Stored tensors, and how their quantisation divides weights among them.
struct WeightReader<'a> {
    shards: &'a Shards,
    of: &'a Quantisation,
    schemes: Vec<Scheme>,
    /// Ends of the names of matrices that several machines quantised.
    by_rank: &'a [&'a str],
    /// Ends of the names of vectors, and of the vectors with their factors.
    multiplied: &'a [(&'a str, &'a str)],
    /// Number of these machines.
    ranks: u64,
}

impl WeightReader<'_> {
    /// Returns whether a weight of this name is stored, as it is or packed.
    fn has_weight(&self, name: &str) -> bool {
        let tensors = &self.shards.tensors;
        tensors.contains_key(name) || tensors.contains_key(&*format!("{name}{PACKED}"))
    }

    /// Returns whether a tensor belongs to another one, such as its scales.
    fn is_scale(&self, name: &str) -> bool {
        let tensors = &self.shards.tensors;
        let weight = name.strip_suffix("_scale_inv").or_else(|| name.strip_suffix("_scale"));
        let beside = name.strip_suffix(".scale").and_then(|base| tensors.get(&*format!("{base}.weight")));
        weight.is_some_and(|weight| self.has_weight(weight))
            || self.schemes.iter().any(|scheme| scheme.is_beside(self.shards, name))
            || self.of.codes && codebook::is_beside(self.shards, name)
            || beside.is_some_and(|(_, weight)| {
                CODES.contains(&weight.dtype.name) || weight.dtype.element == Some(Element::F8E4m3)
            })
            || name.strip_suffix("_scales").is_some_and(|base| tensors.contains_key(&*format!("{base}_blocks")))
            || OF_ACTIVATIONS.iter().any(|end| name.ends_with(end))
            || FACTORS.iter().filter_map(|(end, _)| name.strip_suffix(end)).any(|weight| self.has_weight(weight))
            || self.multiplied.iter().any(|(end, other)| {
                name.strip_suffix(other).is_some_and(|base| tensors.contains_key(&*format!("{base}{end}")))
            })
    }

    /// Returns the scales of a weight, with their name.
    fn scales_of(&self, name: &str) -> Option<(&Box<str>, &(u32, Entry))> {
        let beside = name.strip_suffix(".weight").map(|base| format!("{base}.scale"));
        let names = [Some(format!("{name}_scale_inv")), Some(format!("{name}_scale")), beside];
        names.into_iter().flatten().find_map(|name| self.shards.tensors.get_key_value(name.as_str()))
    }

    /// Returns the weight with its name, if the tensor has codes that another tensor explains.
    fn quantised(
        &self,
        name: &str,
        (file, entry): &(u32, Entry),
    ) -> Result<Option<(Box<str>, Array)>, CheckpointError> {
        let shards = self.shards;
        let extent = Extent { file: *file, offset: entry.offset, bytes: entry.bytes };
        if let Some(base) = name.strip_suffix("_blocks")
            && let Some((scales, found)) = shards.tensors.get_key_value(&*format!("{base}_scales"))
        {
            return Ok(Some((base.into(), blocks(shards, name, entry, extent, scales, found)?)));
        }
        if let Some(scheme) = self.of.scheme(name)
            && let Some((matrix, array)) = scheme.weight(shards, name)?
        {
            return Ok(Some((matrix.into(), array)));
        }
        if entry.dtype.name == "I32" && name.ends_with(PACKED) && !self.schemes.is_empty() {
            let expected = "in a module that targets of config_groups name, with integers";
            return Err(shards.wrong(name, "integers without a group".to_owned(), expected));
        }
        if self.of.codes
            && let Some(array) = codebook::weight(shards, name)?
        {
            return Ok(Some((name.into(), array)));
        }
        let packed = name.strip_suffix(PACKED).unwrap_or(name);
        if CODES.contains(&entry.dtype.name)
            && let Some((scales, found)) = self.scales_of(packed)
        {
            let array = pairs(shards, name, entry, extent, scales, found)?;
            return Ok(Some((packed.into(), array.with_factor(factor(shards, packed)?))));
        }
        Ok(None)
    }

    /// Returns the weight of a tensor of numbers, or the weights of several machines.
    fn numbers(&self, name: &str, stored: &(u32, Entry)) -> Result<Vec<(Box<str>, Array)>, CheckpointError> {
        let (shards, (file, entry)) = (self.shards, stored);
        let extent = Extent { file: *file, offset: entry.offset, bytes: entry.bytes };
        let one = |array| Ok(vec![(name.into(), array)]);
        let Some(element) = entry.dtype.element else {
            // Counters, tables of tokenizers and the like are refused only if a weight needs them.
            let integers = ["I32", "I64"].contains(&entry.dtype.name);
            let table = Array::integers(extent, entry.dtype.name, entry.dtype.bytes, &entry.shape).filter(|_| integers);
            return one(table.unwrap_or_else(|| Array::unreadable(entry.dtype.name)));
        };
        // Empty tensors are refused only if a weight needs them: unused encoders may have some.
        if entry.shape.contains(&0) {
            return one(Array::unreadable("empty"));
        }
        let mut array = Array::whole(extent, element, &entry.shape)
            .ok_or_else(|| shards.wrong(name, entry.dtype.name.to_owned(), "F32, F16, BF16 or F8_E4M3"))?;
        if element == Element::F8E4m3 && self.ranks > 1 && self.by_rank.iter().any(|end| name.ends_with(end)) {
            let part = |rank| {
                let part = of_rank(shards, name, (*file, entry), self.of, [rank, self.ranks])?;
                Ok((format!("{name}.{rank}").into(), part))
            };
            return (0..self.ranks).map(part).collect();
        }
        if element == Element::F8E4m3 {
            let (scale_name, (file, found)) = self.scales_of(name).ok_or_else(|| {
                shards.wrong(name, "F8_E4M3 without scales".to_owned(), format!("{name}_scale_inv or {name}_scale"))
            })?;
            array.set_scales(scales(shards, name, &entry.shape, scale_name, *file, found, self.of)?);
        }
        let mut ends = self.multiplied.iter();
        let factors = ends.find_map(|(end, other)| Some(format!("{}{other}", name.strip_suffix(end)?)));
        if let Some(factors) = factors {
            array.set_scales(number_by_number(shards, &entry.shape, &factors)?);
        }
        one(array)
    }
}

/// Returns the scales of a vector, one for each number: another vector of the same length.
fn number_by_number(shards: &Shards, shape: &[u64], name: &str) -> Result<Scales, CheckpointError> {
    let (file, found) = shards
        .tensors
        .get(name)
        .ok_or_else(|| CheckpointError::TensorMissing { path: shards.folder.clone(), tensor: name.into() })?;
    let columns: u64 = shape.iter().product();
    let element = found.dtype.element.filter(|element| matches!(element, Element::F32 | Element::F16 | Element::Bf16));
    match element {
        Some(element) if found.shape.iter().product::<u64>() == columns && shape.last() == Some(&columns) => {
            let extent = Extent { file: *file, offset: found.offset, bytes: found.bytes };
            Ok(Scales { extent, kind: ScaleKind::Number(element), block_rows: 1, block_columns: 1, columns })
        }
        _ => {
            let expected = format!("{columns} numbers of F32, F16 or BF16, one for each column that it multiplies");
            Err(shards.wrong(name, format!("{:?} of {}", found.shape, found.dtype.name), expected))
        }
    }
}

/// Returns the rows of one machine with their own scales; all machines have the same number of
/// rows.
fn of_rank(
    shards: &Shards,
    name: &str,
    (file, entry): (u32, &Entry),
    of: &Quantisation,
    [rank, ranks]: [u64; 2],
) -> Result<Array, CheckpointError> {
    let scale_name = format!("{name}_scale_inv");
    let cut = |entry: &Entry| {
        let bytes = entry.bytes / ranks;
        let rows = entry.shape.first().map_or(0, |rows| rows / ranks);
        let shape = std::iter::once(rows).chain(entry.shape.iter().skip(1).copied()).collect();
        Entry { offset: entry.offset + rank * bytes, bytes, shape, ..entry.clone() }
    };
    let missing = || shards.wrong(name, "F8_E4M3 without scales".to_owned(), &*scale_name);
    let (scale_file, scale_entry) = shards.tensors.get(&*scale_name).ok_or_else(missing)?;
    let (own, own_scales) = (cut(entry), cut(scale_entry));
    let extent = Extent { file, offset: own.offset, bytes: own.bytes };
    let array = Array::whole(extent, Element::F8E4m3, &own.shape);
    let mut array = array.ok_or_else(|| shards.wrong(name, format!("{:?}", entry.shape), "a matrix"))?;
    array.set_scales(scales(shards, name, &own.shape, &scale_name, *scale_file, &own_scales, of)?);
    Ok(array)
}

/// Returns the scales of one or several FP8 matrices of the same shape: by blocks, by rows, or a
/// single one.
fn scales(
    shards: &Shards,
    weight: &str,
    shape: &[u64],
    name: &str,
    file: u32,
    found: &Entry,
    of: &Quantisation,
) -> Result<Scales, CheckpointError> {
    let kind = match found.dtype.name {
        "F8_E8M0" | "U8" => ScaleKind::Power,
        _ => match found.dtype.element {
            Some(element @ (Element::F32 | Element::F16 | Element::Bf16)) => ScaleKind::Number(element),
            _ => return Err(shards.wrong(name, found.dtype.name.to_owned(), "F32, F16, BF16 or F8_E8M0")),
        },
    };
    let (Some((&columns, lead)), false) = (shape.split_last(), shape.contains(&0)) else {
        return Err(shards.wrong(weight, format!("{shape:?}"), "a matrix"));
    };
    // No dimension is 0 from here on, so no product is larger than the file.
    if found.shape.contains(&0) {
        return Err(shards.wrong(name, format!("{:?}", found.shape), "at least one scale"));
    }
    let rows: u64 = lead.iter().product();
    let count: u64 = found.shape.iter().product();
    let shape_of = |block: [u64; 2]| -> Option<Vec<u64>> {
        let (&of_rows, outer) = lead.split_last()?;
        // Matrices are concatenated; a block must not extend from one to the next.
        if !outer.is_empty() && !of_rows.is_multiple_of(block[0]) {
            return None;
        }
        let last = [of_rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        Some(outer.iter().copied().chain(last).collect())
    };
    let block = match of.block {
        _ if count == 1 => [rows, columns],
        Some(block) if shape_of(block).as_deref() == Some(&*found.shape) => block,
        _ if found.shape.first() == lead.first() && count == rows => [1, columns],
        _ => {
            let expected = match of.block {
                Some([rows, columns]) => format!("a scale for each {rows} rows and {columns} columns of {shape:?}"),
                None => format!("one scale, or one for each row of {shape:?}"),
            };
            return Err(shards.wrong(name, format!("{:?}", found.shape), expected));
        }
    };
    let extent = Extent { file, offset: found.offset, bytes: found.bytes };
    Ok(Scales { extent, kind, block_rows: block[0], block_columns: block[1], columns })
}

/// Returns a matrix of MXFP4 (DeepSeek-V4, compressed-tensors) or NVFP4 (ModelOpt,
/// compressed-tensors). Bytes are `[.., rows, columns / 2]` with neighbours in a byte; scales are
/// `[.., rows, columns / 32]` or `[.., rows, columns / 16]`.
fn pairs(
    shards: &Shards,
    name: &str,
    entry: &Entry,
    extent: Extent,
    scales_name: &str,
    (file, scales): &(u32, Entry),
) -> Result<Array, CheckpointError> {
    let element = if scales.dtype.element == Some(Element::F8E4m3) { Element::Nvfp4 } else { Element::Mxfp4 };
    let each = if element == Element::Nvfp4 { 8 } else { 16 };
    let same = match (entry.shape.split_last(), scales.shape.split_last()) {
        (Some((bytes, rows)), Some((groups, others))) => rows == others && groups.checked_mul(each) == Some(*bytes),
        _ => false,
    };
    if !same || element == Element::Mxfp4 && !["U8", "F8_E8M0"].contains(&scales.dtype.name) {
        let found = format!("{:?} of {}", scales.shape, scales.dtype.name);
        let expected = format!(
            "of U8 or F8_E8M0, one for each 16 bytes of {name}, {:?}, or of F8_E4M3, one for each 8",
            entry.shape
        );
        return Err(shards.wrong(scales_name, found, expected));
    }
    let wrong = |expected: String| shards.wrong(name, format!("{:?}", entry.shape), expected);
    let mut units = entry.shape.to_vec();
    let bytes_of_block = element.columns() / 2;
    match units.last_mut() {
        Some(bytes) if bytes.is_multiple_of(bytes_of_block) => *bytes /= bytes_of_block,
        _ => return Err(wrong(format!("a matrix of whole blocks of {} columns", element.columns()))),
    }
    blocks_of(element, extent, &units, *file, scales).ok_or_else(|| wrong("a matrix".to_owned()))
}

/// Returns the additional factor on a matrix of such codes, if it has one.
fn factor(shards: &Shards, weight: &str) -> Result<Option<Array>, CheckpointError> {
    let found = FACTORS.iter().find_map(|(end, change)| {
        let name = format!("{weight}{end}");
        Some((shards.tensors.get_key_value(name.as_str())?, *change))
    });
    let Some(((name, (file, entry)), change)) = found else { return Ok(None) };
    let extent = Extent { file: *file, offset: entry.offset, bytes: entry.bytes };
    let is_one = entry.dtype.element == Some(Element::F32) && entry.shape.iter().all(|len| *len == 1);
    let array = Array::whole(extent, Element::F32, &[1]).filter(|_| is_one);
    let array = array
        .ok_or_else(|| shards.wrong(name, format!("{:?} of {}", entry.shape, entry.dtype.name), "one number of F32"))?;
    Ok(Some(array.changed(change)))
}

/// Returns blocks of codes with their scales.
fn blocks_of(element: Element, extent: Extent, units: &[u64], file: u32, scales: &Entry) -> Option<Array> {
    let mut array = Array::whole(extent, element, units)?;
    array.set_scales(Scales {
        extent: Extent { file, offset: scales.offset, bytes: scales.bytes },
        kind: ScaleKind::OfBlock,
        block_rows: 1,
        block_columns: 1,
        columns: units.last().copied().unwrap_or(1),
    });
    Some(array)
}

/// Returns blocks of MXFP4 (gpt-oss): bytes `[.., rows, blocks, 16]`, with scales `[.., rows,
/// blocks]`.
fn blocks(
    shards: &Shards,
    name: &str,
    entry: &Entry,
    extent: Extent,
    scales_name: &str,
    (file, scales): &(u32, Entry),
) -> Result<Array, CheckpointError> {
    let units = match entry.shape.split_last() {
        Some((&16, units)) if entry.dtype.name == "U8" && !units.is_empty() => units,
        _ => return Err(shards.wrong(name, format!("{:?} of {}", entry.shape, entry.dtype.name), "[.., 16] of U8")),
    };
    if *units != *scales.shape || scales.dtype.name != "U8" {
        let found = format!("{:?} of {}", scales.shape, scales.dtype.name);
        return Err(shards.wrong(scales_name, found, format!("{units:?} of U8, one for each block")));
    }
    blocks_of(Element::Mxfp4, extent, units, *file, scales)
        .ok_or_else(|| shards.wrong(name, format!("{:?}", entry.shape), "a matrix"))
}
