//! Reader of stored weights: numbers, or codes with their scales.

use std::collections::BTreeMap;

use ixc_ir::derived::{Change, Element, Extent, ScaleKind, Scales};

use super::array::Array;
use super::codebook;
use super::error::CheckpointError;
use super::families::Family;
use super::integers::Scheme;
use super::quantisation::{PACKED, Quantisation};
use super::safetensors::Entry;
use super::shards::{Shards, StoredTensor};

/// Element types of tensors whose bytes hold two four-bit numbers.
const CODES: [&str; 2] = ["I8", "U8"];
/// Name endings of scales for quantised activations, which are not used here.
const ACTIVATION_ENDS: [&str; 5] = [".input_scale", ".input_global_scale", ".activation_scale", ".k_scale", ".v_scale"];
/// Name endings of a number that multiplies an NVFP4 matrix (ModelOpt), and of a number that
/// divides it (compressed-tensors).
const FACTORS: [(&str, Change); 2] = [("_scale_2", Change::Keep), ("_global_scale", Change::Inverse)];

/// Numbers of machines that published models may have been divided among, by rows, before
/// quantisation; 1 means undivided.
const RANKS: [u64; 3] = [8, 4, 1];

/// Returns the number of machines that quantised FP8 matrices, each its own rows. It is the number
/// that fits the scales, otherwise 1. `ends` are the name endings of these matrices.
fn ranks(shards: &Shards, quantisation: &Quantisation, ends: &[&str]) -> u64 {
    let Some([block, _]) = quantisation.block else { return 1 };
    let of_ends = shards.tensors.iter().filter(|(name, _)| ends.iter().any(|end| name.ends_with(end)));
    let shapes: Vec<[u64; 2]> = of_ends
        .filter_map(|(name, matrix)| {
            let scales = shards.tensors.get(&*format!("{name}_scale_inv"))?;
            Some([*matrix.entry.shape.first()?, *scales.entry.shape.first()?])
        })
        .collect();
    let fits = |ranks: &u64| {
        shapes.iter().all(|[rows, scales]| {
            rows.is_multiple_of(*ranks) && (rows / ranks).div_ceil(block).checked_mul(*ranks) == Some(*scales)
        })
    };
    RANKS.into_iter().find(|ranks| !shapes.is_empty() && fits(ranks)).unwrap_or(1)
}

/// Returns all weights with their scales, by the names that they would have without quantisation. A
/// matrix in the family's `by_rank` that several machines quantised becomes several matrices:
/// `weight.0` and so on. A vector in `scaled_vectors` gets its factors as scales.
pub(super) fn weights(
    shards: &Shards,
    quantisation: &Quantisation,
    &Family { by_rank, scaled_vectors, .. }: &Family,
) -> Result<BTreeMap<Box<str>, Array>, CheckpointError> {
    // Duplicate schemes are removed, because each scheme is compared with each tensor.
    let mut schemes: Vec<Scheme> = Vec::new();
    for scheme in quantisation.integers.values().flatten() {
        if !schemes.contains(&scheme) {
            schemes.push(scheme);
        }
    }
    let reader = WeightReader {
        shards,
        quantisation,
        schemes,
        by_rank,
        scaled_vectors,
        ranks: ranks(shards, quantisation, by_rank),
    };
    let mut weights = BTreeMap::new();
    for (name, stored) in shards.tensors.iter().filter(|(name, _)| !reader.is_scale(name)) {
        match reader.quantised_weight(name, stored)? {
            Some((name, array)) => {
                weights.insert(name, array);
            }
            None => weights.extend(reader.numbers(name, stored)?),
        }
    }
    Ok(weights)
}

/// Stored tensors, and the settings that determine how weights are read from them.
struct WeightReader<'a> {
    shards: &'a Shards,
    quantisation: &'a Quantisation,
    schemes: Vec<Scheme>,
    /// Name endings of matrices that several machines may have quantised.
    by_rank: &'a [&'a str],
    /// Name endings of vectors, each with the name ending of the vector of its factors.
    scaled_vectors: &'a [(&'a str, &'a str)],
    /// Number of machines that each quantised a part of these matrices.
    ranks: u64,
}

impl WeightReader<'_> {
    /// Returns whether a weight of this name is stored, unpacked or packed.
    fn has_weight(&self, name: &str) -> bool {
        let tensors = &self.shards.tensors;
        tensors.contains_key(name) || tensors.contains_key(&*format!("{name}{PACKED}"))
    }

    /// Returns whether a tensor only belongs to another tensor, for example as its scales.
    fn is_scale(&self, name: &str) -> bool {
        let tensors = &self.shards.tensors;
        let weight = name.strip_suffix("_scale_inv").or_else(|| name.strip_suffix("_scale"));
        let beside = name.strip_suffix(".scale").and_then(|base| tensors.get(&*format!("{base}.weight")));
        weight.is_some_and(|weight| self.has_weight(weight))
            || self.schemes.iter().any(|scheme| scheme.is_companion(self.shards, name))
            || self.quantisation.codes && codebook::is_companion(self.shards, name)
            || beside.is_some_and(|weight| {
                let dtype = &weight.entry.dtype;
                CODES.contains(&dtype.name) || dtype.element == Some(Element::F8E4m3)
            })
            || name.strip_suffix("_scales").is_some_and(|base| tensors.contains_key(&*format!("{base}_blocks")))
            || ACTIVATION_ENDS.iter().any(|end| name.ends_with(end))
            || FACTORS.iter().filter_map(|(end, _)| name.strip_suffix(end)).any(|weight| self.has_weight(weight))
            || self.scaled_vectors.iter().any(|(end, other)| {
                name.strip_suffix(other).is_some_and(|base| tensors.contains_key(&*format!("{base}{end}")))
            })
    }

    /// Returns the scales of a weight, with their name.
    fn scales_of(&self, name: &str) -> Option<(&str, &StoredTensor)> {
        let beside = name.strip_suffix(".weight").map(|base| format!("{base}.scale"));
        let names = [Some(format!("{name}_scale_inv")), Some(format!("{name}_scale")), beside];
        let found = names.into_iter().flatten().find_map(|name| self.shards.tensors.get_key_value(name.as_str()));
        found.map(|(name, scales)| (&**name, scales))
    }

    /// Returns the weight that a quantised tensor holds, and its name. Returns `None` if the tensor
    /// is not quantised, or is FP8.
    fn quantised_weight(
        &self,
        name: &str,
        stored: &StoredTensor,
    ) -> Result<Option<(Box<str>, Array)>, CheckpointError> {
        let (shards, entry) = (self.shards, &stored.entry);
        if let Some(base) = name.strip_suffix("_blocks")
            && let Some((scales, found)) = shards.tensors.get_key_value(&*format!("{base}_scales"))
        {
            return Ok(Some((base.into(), blocks(shards, name, stored, scales, found)?)));
        }
        if let Some(scheme) = self.quantisation.scheme(name)
            && let Some((matrix, array)) = scheme.weight(shards, name)?
        {
            return Ok(Some((matrix.into(), array)));
        }
        if entry.dtype.name == "I32" && name.ends_with(PACKED) && !self.schemes.is_empty() {
            let expected = "packed integers only in modules that the targets of config_groups name";
            return Err(shards.wrong(
                name,
                "packed integers of a module without a quantisation group".to_owned(),
                expected,
            ));
        }
        if self.quantisation.codes
            && let Some(array) = codebook::weight(shards, name)?
        {
            return Ok(Some((name.into(), array)));
        }
        let packed = name.strip_suffix(PACKED).unwrap_or(name);
        if CODES.contains(&entry.dtype.name)
            && let Some((scales, found)) = self.scales_of(packed)
        {
            let array = pairs(shards, name, stored, scales, found)?;
            return Ok(Some((packed.into(), array.with_factor(factor(shards, packed)?))));
        }
        Ok(None)
    }

    /// Returns the weight of a tensor of numbers, or several weights if several machines quantised
    /// it.
    fn numbers(&self, name: &str, stored: &StoredTensor) -> Result<Vec<(Box<str>, Array)>, CheckpointError> {
        let (shards, entry) = (self.shards, &stored.entry);
        let extent = stored.extent();
        let one = |array| Ok(vec![(name.into(), array)]);
        let Some(element) = entry.dtype.element else {
            // Other integer tensors, such as counters and tokenizer tables, are an error only if a
            // weight needs them.
            let integers = ["I32", "I64"].contains(&entry.dtype.name);
            let table = Array::integers(extent, entry.dtype.name, entry.dtype.bytes, &entry.shape).filter(|_| integers);
            return one(table.unwrap_or_else(|| Array::unreadable(entry.dtype.name)));
        };
        // Empty tensors are an error only if a weight needs them: unused encoders may have such
        // tensors.
        if entry.shape.contains(&0) {
            return one(Array::unreadable("empty"));
        }
        let mut array = Array::whole(extent, element, &entry.shape)
            .ok_or_else(|| shards.wrong(name, entry.dtype.name.to_owned(), "F32, F16, BF16 or F8_E4M3"))?;
        if element == Element::F8E4m3 && self.ranks > 1 && self.by_rank.iter().any(|end| name.ends_with(end)) {
            let part = |rank| {
                let part = rank_rows(shards, name, stored, self.quantisation, rank, self.ranks)?;
                Ok((format!("{name}.{rank}").into(), part))
            };
            return (0..self.ranks).map(part).collect();
        }
        if element == Element::F8E4m3 {
            let (scale_name, found) = self.scales_of(name).ok_or_else(|| {
                shards.wrong(
                    name,
                    "a tensor of F8_E4M3 without scales".to_owned(),
                    format!("scales in tensor {name}_scale_inv or {name}_scale"),
                )
            })?;
            array.set_scales(scales(
                shards,
                name,
                &entry.shape,
                scale_name,
                &found.entry,
                found.extent(),
                self.quantisation,
            )?);
        }
        let mut ends = self.scaled_vectors.iter();
        let factors = ends.find_map(|(end, other)| Some(format!("{}{other}", name.strip_suffix(end)?)));
        if let Some(factors) = factors {
            array.set_scales(number_by_number(shards, &entry.shape, &factors)?);
        }
        one(array)
    }
}

/// Returns the scales of a vector. They are the vector `name`, which has a scale for each number.
fn number_by_number(shards: &Shards, shape: &[u64], name: &str) -> Result<Scales, CheckpointError> {
    let missing = || CheckpointError::TensorMissing { path: shards.folder.clone(), tensor: name.into() };
    let factors = shards.tensors.get(name).ok_or_else(missing)?;
    let found = &factors.entry;
    let columns: u64 = shape.iter().product();
    let element = found.dtype.element.filter(|element| matches!(element, Element::F32 | Element::F16 | Element::Bf16));
    match element {
        Some(element) if found.shape.iter().product::<u64>() == columns && shape.last() == Some(&columns) => {
            let (extent, kind) = (factors.extent(), ScaleKind::Number(element));
            Ok(Scales { extent, kind, block_rows: 1, block_columns: 1, columns })
        }
        _ => {
            let expected = format!("{columns} numbers of F32, F16 or BF16, one for each column that it multiplies");
            Err(shards.wrong(name, format!("{:?} of {}", found.shape, found.dtype.name), expected))
        }
    }
}

/// Returns the rows that machine `rank` quantised, with their scales. All machines have the same
/// number of rows.
fn rank_rows(
    shards: &Shards,
    name: &str,
    stored: &StoredTensor,
    quantisation: &Quantisation,
    rank: u64,
    ranks: u64,
) -> Result<Array, CheckpointError> {
    let scale_name = format!("{name}_scale_inv");
    let cut = |entry: &Entry| {
        let bytes = entry.bytes / ranks;
        let rows = entry.shape.first().map_or(0, |rows| rows / ranks);
        let shape = std::iter::once(rows).chain(entry.shape.iter().skip(1).copied()).collect();
        Entry { offset: entry.offset + rank * bytes, bytes, shape, ..entry.clone() }
    };
    let missing = || shards.wrong(name, "a tensor of F8_E4M3 without scales".to_owned(), &*scale_name);
    let all_scales = shards.tensors.get(&*scale_name).ok_or_else(missing)?;
    let (own, own_scales) = (cut(&stored.entry), cut(&all_scales.entry));
    let array = Array::whole(own.extent(stored.file), Element::F8E4m3, &own.shape);
    let mut array = array.ok_or_else(|| shards.wrong(name, format!("{:?}", stored.entry.shape), "a matrix"))?;
    let extent = own_scales.extent(all_scales.file);
    array.set_scales(scales(shards, name, &own.shape, &scale_name, &own_scales, extent, quantisation)?);
    Ok(array)
}

/// Returns the scales of one or several FP8 matrices of the same shape: a scale for each block, for
/// each row, or a single one.
fn scales(
    shards: &Shards,
    weight: &str,
    shape: &[u64],
    name: &str,
    found: &Entry,
    extent: Extent,
    quantisation: &Quantisation,
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
    // No dimension is 0 from here on, so products of dimensions are at most the file's length.
    if found.shape.contains(&0) {
        return Err(shards.wrong(name, format!("{:?}", found.shape), "at least one scale"));
    }
    let rows: u64 = lead.iter().product();
    let count: u64 = found.shape.iter().product();
    let shape_of = |block: [u64; 2]| -> Option<Vec<u64>> {
        let (&of_rows, outer) = lead.split_last()?;
        // The matrices are concatenated here. A block must not extend from one matrix into the
        // next.
        if !outer.is_empty() && !of_rows.is_multiple_of(block[0]) {
            return None;
        }
        let last = [of_rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        Some(outer.iter().copied().chain(last).collect())
    };
    let block = match quantisation.block {
        _ if count == 1 => [rows, columns],
        Some(block) if shape_of(block).as_deref() == Some(&*found.shape) => block,
        _ if found.shape.first() == lead.first() && count == rows => [1, columns],
        _ => {
            let expected = match quantisation.block {
                Some([rows, columns]) => {
                    format!("one scale for each block of {rows} rows and {columns} columns of shape {shape:?}")
                }
                None => format!("one scale, or one for each row of shape {shape:?}"),
            };
            return Err(shards.wrong(name, format!("{:?}", found.shape), expected));
        }
    };
    Ok(Scales { extent, kind, block_rows: block[0], block_columns: block[1], columns })
}

/// Returns a matrix of MXFP4 (DeepSeek-V4, compressed-tensors) or NVFP4 (ModelOpt,
/// compressed-tensors). The bytes are `[.., rows, columns / 2]`; each holds two adjacent columns.
/// The scales are `[.., rows, columns / 32]` (MXFP4) or `[.., rows, columns / 16]` (NVFP4).
fn pairs(
    shards: &Shards,
    name: &str,
    stored: &StoredTensor,
    scales_name: &str,
    scales: &StoredTensor,
) -> Result<Array, CheckpointError> {
    let (entry, scales_extent, scales) = (&stored.entry, scales.extent(), &scales.entry);
    let element = if scales.dtype.element == Some(Element::F8E4m3) { Element::Nvfp4 } else { Element::Mxfp4 };
    let each = if element == Element::Nvfp4 { 8 } else { 16 };
    let same = match (entry.shape.split_last(), scales.shape.split_last()) {
        (Some((bytes, rows)), Some((groups, others))) => rows == others && groups.checked_mul(each) == Some(*bytes),
        _ => false,
    };
    if !same || element == Element::Mxfp4 && !["U8", "F8_E8M0"].contains(&scales.dtype.name) {
        let found = format!("{:?} of {}", scales.shape, scales.dtype.name);
        let expected = format!(
            "scales of U8 or F8_E8M0, one for each 16 bytes of {name}, {:?}, or of F8_E4M3, one for each 8 bytes",
            entry.shape
        );
        return Err(shards.wrong(scales_name, found, expected));
    }
    let wrong = |expected: String| shards.wrong(name, format!("{:?}", entry.shape), expected);
    let mut units = entry.shape.to_vec();
    let bytes_of_block = element.columns() / 2;
    match units.last_mut() {
        Some(bytes) if bytes.is_multiple_of(bytes_of_block) => *bytes /= bytes_of_block,
        _ => return Err(wrong(format!("a matrix whose rows are whole blocks of {} columns", element.columns()))),
    }
    blocks_of(element, stored.extent(), &units, scales_extent).ok_or_else(|| wrong("a matrix".to_owned()))
}

/// Returns the additional factor on an NVFP4 matrix, if there is one.
fn factor(shards: &Shards, weight: &str) -> Result<Option<Array>, CheckpointError> {
    let found = FACTORS.iter().find_map(|(end, change)| {
        let name = format!("{weight}{end}");
        Some((shards.tensors.get_key_value(name.as_str())?, *change))
    });
    let Some(((name, stored), change)) = found else { return Ok(None) };
    let entry = &stored.entry;
    let is_one = entry.dtype.element == Some(Element::F32) && entry.shape.iter().all(|len| *len == 1);
    let array = Array::whole(stored.extent(), Element::F32, &[1]).filter(|_| is_one);
    let array = array
        .ok_or_else(|| shards.wrong(name, format!("{:?} of {}", entry.shape, entry.dtype.name), "one number as F32"))?;
    Ok(Some(array.with_change(change)))
}

/// Returns a view of blocks of codes with their scales.
fn blocks_of(element: Element, extent: Extent, units: &[u64], scales: Extent) -> Option<Array> {
    let mut array = Array::whole(extent, element, units)?;
    array.set_scales(Scales {
        extent: scales,
        kind: ScaleKind::OfBlock,
        block_rows: 1,
        block_columns: 1,
        columns: units.last().copied().unwrap_or(1),
    });
    Some(array)
}

/// Returns a matrix of MXFP4 as gpt-oss stores it. The bytes are `[.., rows, blocks, 16]`, and the
/// scales are `[.., rows, blocks]`.
fn blocks(
    shards: &Shards,
    name: &str,
    stored: &StoredTensor,
    scales_name: &str,
    scales: &StoredTensor,
) -> Result<Array, CheckpointError> {
    let (entry, scales_extent, scales) = (&stored.entry, scales.extent(), &scales.entry);
    let units = match entry.shape.split_last() {
        Some((&16, units)) if entry.dtype.name == "U8" && !units.is_empty() => units,
        _ => return Err(shards.wrong(name, format!("{:?} of {}", entry.shape, entry.dtype.name), "[.., 16] of U8")),
    };
    if *units != *scales.shape || scales.dtype.name != "U8" {
        let found = format!("{:?} of {}", scales.shape, scales.dtype.name);
        return Err(shards.wrong(
            scales_name,
            found,
            format!("scales of shape {units:?} and type U8, one for each block"),
        ));
    }
    blocks_of(Element::Mxfp4, stored.extent(), units, scales_extent)
        .ok_or_else(|| shards.wrong(name, format!("{:?}", entry.shape), "a matrix"))
}
