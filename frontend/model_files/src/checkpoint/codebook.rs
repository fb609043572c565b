//! Reader of matrices of four-bit codes with a scale for each block of consecutive numbers, as
//! bitsandbytes writes them.
//!
//! ```text
//! q_proj.weight                                 U8  [n / 2, 1]  codes of all rows,
//!                                                                two in a byte, upper half first
//! q_proj.weight.absmax                          F32 [n / 64]    a scale for each 64 numbers
//! q_proj.weight.quant_map                       F32 [16]        numbers that codes stand for
//! q_proj.weight.quant_state.bitsandbytes__nf4   U8  [length]    JSON: {"quant_type": "nf4",
//!     "blocksize": 64, "dtype": "bfloat16", "shape": [4096, 4096]}
//! ```
//!
//! The scales may be quantised to bytes. The matrix then has two more tensors, and the JSON has two
//! more numbers:
//!
//! ```text
//! q_proj.weight.absmax                          U8  [n / 64]
//!     scale = nested_quant_map[code] * nested_absmax[i / nested_blocksize] + nested_offset
//! q_proj.weight.nested_quant_map                F32 [256]
//! q_proj.weight.nested_absmax                   F32 [n / 64 / 256]
//! ```
//!
//! The scaled numbers are rounded to the `dtype` of the JSON, because bitsandbytes rounds them
//! before it multiplies. Each file must have the same `quant_map`; this is checked.

use ixc_ir::derived::{CodedScales, Element, ScaleKind, Scales};
use serde::Deserialize;

use super::array::Array;
use super::error::CheckpointError;
use super::shards::{Shards, StoredTensor};

/// Name endings of the JSON tensor. Each has the name of its code and the element type of codes.
const STATES: [(&str, &str, Element); 2] =
    [(".quant_state.bitsandbytes__nf4", "nf4", Element::Nf4), (".quant_state.bitsandbytes__fp4", "fp4", Element::Fp4)];
/// Name endings of the other tensors that belong to a matrix of codes.
const COMPANION_ENDS: [&str; 4] = [".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"];
/// Maximum length of a matrix's JSON in bytes. Known JSON tensors have about 200 bytes.
const MAX_STATE: u64 = 1 << 16;
/// Number of scales that are checked, in each matrix whose scales are not quantised.
const CHECKED_SCALES: u64 = 1 << 14;
/// Maximum number of dimensions of a matrix: experts, rows, columns.
const MAX_DIMS: usize = 3;
/// Maximum difference between a number in a file's `quant_map` and the number that the code stands
/// for. Programs compute these numbers in several ways.
const TOLERANCE: f32 = 1e-4;

/// Content of a matrix's JSON tensor.
#[derive(Deserialize)]
struct State {
    quant_type: Option<String>,
    blocksize: u64,
    dtype: String,
    shape: Vec<u64>,
    nested_blocksize: Option<u64>,
    nested_offset: Option<f64>,
}

/// Returns whether a tensor holds scales or other data of a matrix of codes.
pub(super) fn is_companion(shards: &Shards, name: &str) -> bool {
    let ends = COMPANION_ENDS.iter().copied().chain(STATES.map(|(end, ..)| end));
    ends.into_iter().filter_map(|end| name.strip_suffix(end)).any(|of| shards.tensors.contains_key(of))
}

/// Returns the matrix whose codes the tensor `name` holds; `None` if the tensor holds no codes.
///
/// # Errors
/// When the matrix's scales or JSON are missing, or have an unexpected shape, type or value.
pub(super) fn weight(shards: &Shards, name: &str) -> Result<Option<Array>, CheckpointError> {
    let state = STATES.iter().find_map(|(end, kind, element)| {
        let (state, _) = shards.tensors.get_key_value(&*format!("{name}{end}"))?;
        Some((&**state, *kind, *element))
    });
    let Some(stored) = shards.tensors.get(name) else { return Ok(None) };
    let entry = &stored.entry;
    let Some((state_name, kind, element)) = state else {
        // Weights that are not quantised have no JSON. Codes without a JSON are an error, because
        // their shape is unknown.
        if entry.dtype.name != "U8" {
            return Ok(None);
        }
        let expected = format!("a tensor {name}{} or {}", STATES[0].0, STATES[1].0);
        return Err(shards.wrong(
            name,
            "a matrix of bitsandbytes codes without a quantisation state".to_owned(),
            expected,
        ));
    };
    let State { quant_type, blocksize, dtype, shape, nested_blocksize, nested_offset } =
        read_state(shards, state_name)?;
    let wrong = |found: String, expected: &str| shards.wrong(state_name, found, expected);
    if quant_type.as_deref().is_some_and(|found| found != kind) {
        return Err(wrong(
            format!("a quantisation state with quant_type {quant_type:?}"),
            &format!("quant_type \"{kind}\", as in the name of the tensor"),
        ));
    }
    let rounded = match &*dtype {
        "bfloat16" => Some(Element::Bf16),
        "float16" => Some(Element::F16),
        "float32" => Some(Element::F32),
        _ => None,
    };
    let Some(format) = rounded.and_then(Element::format) else {
        return Err(wrong(format!("a quantisation state with dtype {dtype:?}"), "dtype float16, bfloat16 or float32"));
    };
    if !(2..=MAX_DIMS).contains(&shape.len()) {
        return Err(wrong(
            format!("a quantisation state whose shape has {} dimensions", shape.len()),
            "the dimensions rows and columns, or experts, rows and columns",
        ));
    }
    let count = shape.iter().try_fold(1u64, |count, len| count.checked_mul(*len)).filter(|count| *count > 0);
    let bytes = |count: u64| count.div_ceil(2).checked_next_multiple_of(entry.dtype.bytes);
    let Some(count) = count.filter(|count| bytes(*count) == Some(entry.bytes)) else {
        return Err(wrong(
            format!("of shape {shape:?}"),
            &format!("the shape of a matrix of {} codes, the number in tensor {name}", u128::from(entry.bytes) * 2),
        ));
    };
    if blocksize == 0 {
        return Err(wrong(
            "a quantisation state with blocksize 0".to_owned(),
            "a blocksize of 1 or more numbers for each scale",
        ));
    }
    let map = format!("{name}.quant_map");
    let numbers = numbers(shards, &map, 16, u64::MAX)?;
    let book = element.codebook().unwrap_or_default();
    if let Some((code, (found, _))) =
        numbers.iter().zip(book).enumerate().find(|(_, (found, right))| (**found - right).abs() > TOLERANCE)
    {
        let expected = format!("{} of {kind}", book[code]);
        return Err(shards.wrong(&map, format!("{found} for code {code}"), expected));
    }
    let blocks = count.div_ceil(blocksize);
    let absmax = format!("{name}.absmax");
    let scales = require(shards, &absmax)?;
    let kind = match scales.entry.dtype.name {
        "F32" => {
            self::numbers(shards, &absmax, blocks, CHECKED_SCALES)?;
            ScaleKind::Number(Element::F32)
        }
        "U8" if scales.entry.shape.iter().product::<u64>() == blocks => {
            let (Some(block @ 1..), Some(more)) = (nested_blocksize, nested_offset.filter(|more| more.is_finite()))
            else {
                let found = format!(
                    "a quantisation state with nested_blocksize {nested_blocksize:?} and nested_offset {nested_offset:?}"
                );
                return Err(wrong(found, "a count and a finite number, because the scales are codes, too"));
            };
            let (nested, numbers) = (format!("{name}.nested_absmax"), format!("{name}.nested_quant_map"));
            self::numbers(shards, &nested, blocks.div_ceil(block), u64::MAX)?;
            self::numbers(shards, &numbers, 256, u64::MAX)?;
            let extent = |name: &str| require(shards, name).map(StoredTensor::extent);
            let (numbers, scales) = (extent(&numbers)?, extent(&nested)?);
            ScaleKind::Coded(Box::new(CodedScales { numbers, scales, block, more: more as f32 }))
        }
        _ => {
            let found = format!("{:?} of {}", scales.entry.shape, scales.entry.dtype.name);
            return Err(shards.wrong(
                &absmax,
                found,
                format!("{blocks} scales as F32 or as codes of U8, one for each block"),
            ));
        }
    };
    let array = Array::whole(stored.extent(), element, &shape);
    let mut array = array.ok_or_else(|| wrong(format!("of shape {shape:?}"), "the shape of a matrix"))?;
    array.set_scales(Scales { extent: scales.extent(), kind, block_rows: 1, block_columns: blocksize, columns: count });
    Ok(Some(array.rounded_to(format)))
}

fn read_state(shards: &Shards, name: &str) -> Result<State, CheckpointError> {
    let entry = &require(shards, name)?.entry;
    let expected = "a JSON object as U8, with blocksize, dtype and shape";
    if entry.dtype.name != "U8" || entry.bytes > MAX_STATE {
        return Err(shards.wrong(name, format!("{:?} of {}", entry.shape, entry.dtype.name), expected));
    }
    let bytes = shards.bytes(name, MAX_STATE).unwrap_or_default();
    serde_json::from_slice(bytes).map_err(|error| shards.wrong(name, format!("malformed ({error})"), expected))
}

/// Returns a tensor, or an error if it is missing.
fn require<'s>(shards: &'s Shards, name: &str) -> Result<&'s StoredTensor, CheckpointError> {
    let missing = || CheckpointError::TensorMissing { path: shards.folder.clone(), tensor: name.into() };
    shards.tensors.get(name).ok_or_else(missing)
}

/// Returns the first numbers of a tensor, at most `max`. The tensor must have `count` numbers, and
/// the returned numbers must be finite.
fn numbers(shards: &Shards, name: &str, count: u64, max: u64) -> Result<Vec<f32>, CheckpointError> {
    let entry = &require(shards, name)?.entry;
    if entry.dtype.name != "F32" || entry.shape.iter().product::<u64>() != count {
        let found = format!("{:?} of {}", entry.shape, entry.dtype.name);
        return Err(shards.wrong(name, found, format!("{count} numbers of F32")));
    }
    let bytes = shards.bytes(name, max.saturating_mul(4)).unwrap_or_default();
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    match numbers.iter().position(|number| !number.is_finite()) {
        Some(at) => Err(shards.wrong(name, format!("{} at {at}", numbers[at]), "finite numbers")),
        None => Ok(numbers),
    }
}
