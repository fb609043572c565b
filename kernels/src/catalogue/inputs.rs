//! Generation of valid inputs of a kernel: buffers with numbers of ordinary size.
//!
//! The spec's signature declares the contents of each buffer: blocks of a weight, quantised
//! activations, f16 numbers of the KV cache. A kernel without a spec gets numbers of the type that
//! it loads. Buffers that a kernel reads and writes also start with numbers. Buffers that it only
//! writes start with [`POISON`]. The same seed gives the same bytes on every machine.

use half::{bf16, f16};
use ixc_failure::Class;
use ixc_ir::cache::Codes;
use ixc_ir::format::requantise::requantise;
use ixc_ir::format::{Codec, Float, Format, packed};
use ixc_ir::graph::quantise::{quantise, quantise_rows};
use ixc_ir::kernel::call::{CallError, check_dims};
use ixc_ir::kernel::{Buffer, BufferKind, Elem, Kernel};
use ixc_ir::random::Random;

use super::compare;
use crate::KernelSpec;
use crate::generator::signature::{BufferContents, Role};
use crate::generator::work::evaluate;

/// Byte that fills written buffers before a kernel runs. It looks neither like a computed float nor
/// like zeros.
pub const POISON: u8 = 0xa5;
/// Maximum number of bytes of all buffers together.
pub const MAX_BYTES: u64 = 2 << 30;

/// Reason why a kernel has no valid inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// A wrong number of dims, or a dim outside its range.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The buffers exceed the memory limit.
    #[error("the buffers need more than {most} bytes; use smaller sizes or fewer rows")]
    TooLarge {
        /// Maximum number of bytes of all buffers together.
        most: u64,
    },
    /// An index buffer whose bound allows no value.
    #[error("index buffer %{name} has no valid value, since values must be below {below}")]
    NoIndex {
        /// Name of the buffer.
        name: String,
        /// Exclusive upper bound of the values.
        below: i64,
    },
}

impl InputError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            InputError::Call(error) => error.class(),
            InputError::TooLarge { .. } | InputError::NoIndex { .. } => Class::Data,
        }
    }
}

fn floats(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| random.signed() * 2.0).collect()
}

/// Returns the sizes of a kernel's buffers in bytes.
///
/// # Errors
/// Fails if the dims do not fit the kernel, or if the buffers together are larger than
/// [`MAX_BYTES`].
pub fn sizes(kernel: &Kernel, dims: &[i64]) -> Result<Vec<usize>, InputError> {
    check_dims(&kernel.dims, dims)?;
    let mut left = MAX_BYTES;
    let sizes = kernel.buffers.iter().map(|buffer| {
        let size = evaluate(&buffer.size, dims).map_or(u64::MAX, |size| size.max(0).unsigned_abs());
        left = left.checked_sub(size).ok_or(InputError::TooLarge { most: MAX_BYTES })?;
        usize::try_from(size).map_err(|_| InputError::TooLarge { most: MAX_BYTES })
    });
    sizes.collect()
}

/// Returns the contents of a kernel's buffers before it runs.
///
/// # Errors
/// Fails like [`sizes`], and if an index buffer has no valid value.
pub fn fill(kernel: &Kernel, spec: Option<&KernelSpec>, dims: &[i64], seed: u64) -> Result<Vec<Vec<u8>>, InputError> {
    let sizes = sizes(kernel, dims)?;
    let name = spec.map_or_else(|| kernel.name.clone(), KernelSpec::name);
    let start = (dims.iter().sum::<i64>() as u64).wrapping_add(seed.wrapping_mul(0x9e37_79b9));
    let mut random = Random::new(name.bytes().fold(start, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b))));
    let loaded = compare::elements(kernel);
    let signature = spec.map(KernelSpec::signature);
    let declared = |buffer: &Buffer| signature.as_ref().and_then(|signature| signature.buffer(&buffer.name));
    let buffers = kernel.buffers.iter().zip(sizes).zip(loaded).map(|((buffer, size), elem)| match &buffer.kind {
        BufferKind::Index { below } => indices(&mut random, buffer, evaluate(below, dims).unwrap_or(0), size),
        BufferKind::Write | BufferKind::Scratch => Ok(vec![POISON; size]),
        BufferKind::ReadWrite if declared(buffer).is_none_or(|declared| declared.role != Role::Update) => {
            Ok(vec![POISON; size])
        }
        BufferKind::Read | BufferKind::ReadWrite => {
            let holds = declared(buffer);
            let content = holds.map_or_else(|| Content::elements(elem), |buffer| buffer.holds.into());
            Ok(content.fill(&mut random, size, kernel, spec, dims))
        }
    });
    buffers.collect()
}

/// Returns `bytes` bytes of whole blocks in a weight format of files. The codes are random, and the
/// scales have ordinary size.
pub fn blocks(format: Format, bytes: usize, seed: u64) -> Vec<u8> {
    weights(&mut Random::new(seed), format, bytes)
}

fn indices(random: &mut Random, buffer: &Buffer, below: i64, size: usize) -> Result<Vec<u8>, InputError> {
    // Index values are 32 bits wide.
    let most = u64::try_from(below).unwrap_or(0).min(1 << 32);
    if most == 0 && size > 0 {
        return Err(InputError::NoIndex { name: buffer.name.clone(), below });
    }
    let mut bytes: Vec<u8> = (0..size / 4).flat_map(|_| ((random.bits() % most) as u32).to_le_bytes()).collect();
    bytes.resize(size, 0);
    Ok(bytes)
}

/// Contents of a buffer that the kernel reads.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// Blocks of a weight format with random codes and scales of ordinary size.
    Weights(Format),
    /// Rows in an activation format.
    Activations(Format),
    /// f16 numbers.
    Halves,
    /// Panels of a KV cache in a block format. The codes are random. Scales of either sign give
    /// numbers as large as those of an f16 cache.
    Panels(Format),
    /// bf16 numbers of ordinary size.
    Bf16,
    /// f32 numbers.
    Floats,
    /// f32 numbers above 0.
    Positive,
    /// f32 numbers below 0.
    Negative,
    /// Small f32 numbers above 0, so that distant positions keep some weight.
    Slopes,
    /// Consecutive positions of rows. The last one is inside the last block of 32, so that some
    /// positions of that block are masked.
    Positions,
    /// A number of places that is not a multiple of 32, so that the last block is partial.
    Whole,
    /// Small integers, some of them negative.
    Ids,
    /// Random bytes.
    Bytes,
}

impl From<BufferContents> for Content {
    fn from(holds: BufferContents) -> Content {
        match holds {
            BufferContents::Weight(format, _) | BufferContents::Table(format, _) | BufferContents::Strip(format, _) => {
                Content::Weights(format)
            }
            BufferContents::Activations(format, _) => Content::Activations(format),
            BufferContents::Floats => Content::Floats,
            BufferContents::Positive => Content::Positive,
            BufferContents::Negative => Content::Negative,
            BufferContents::Slopes => Content::Slopes,
            BufferContents::Halves => Content::Halves,
            BufferContents::Panels(format) => Content::Panels(format),
            BufferContents::Positions => Content::Positions,
            BufferContents::Whole => Content::Whole,
            // Values of index buffers are below their declared bound; other ids are small integers.
            BufferContents::Ids => Content::Ids,
            BufferContents::Bytes => Content::Bytes,
        }
    }
}

impl Content {
    /// Returns the contents of a buffer for which only the element type is known.
    fn elements(elem: Option<Elem>) -> Content {
        match elem {
            Some(Elem::F32) => Content::Floats,
            Some(Elem::F16) => Content::Halves,
            Some(Elem::Bf16) => Content::Bf16,
            Some(Elem::I8 | Elem::I16 | Elem::I32) | None => Content::Bytes,
        }
    }

    fn fill(
        self,
        random: &mut Random,
        size: usize,
        kernel: &Kernel,
        spec: Option<&KernelSpec>,
        dims: &[i64],
    ) -> Vec<u8> {
        let mut bytes: Vec<u8> = match self {
            Content::Weights(format) if format.has_row_scale() => rows(random, format, size, spec),
            Content::Weights(format) => weights(random, format, size),
            Content::Activations(format) if format.tail_bytes() > 0 => {
                let row = row_len(format, size, spec);
                quantise_rows(format, &floats(random, format.elements(size, row).unwrap_or(0)), row)
            }
            Content::Activations(format) => {
                quantise(format, &floats(random, size / format.block_bytes() * format.block_len()))
            }
            Content::Halves => (0..size / 2).flat_map(|_| f16::from_f32(random.signed() * 2.0).to_le_bytes()).collect(),
            Content::Panels(format) => {
                let Some(codes) = Codes::from_format(format) else { unreachable!("{format} has no panels") };
                let mut bytes: Vec<u8> = (0..size).map(|_| random.bits() as u8).collect();
                for panel in bytes.chunks_exact_mut(codes.panel()) {
                    for half in panel[..codes.first()].chunks_exact_mut(2) {
                        let d = random.signed() * 2.0 / -codes.least as f32;
                        half.copy_from_slice(&f16::from_f32(d).to_le_bytes());
                    }
                }
                bytes
            }
            Content::Bf16 => {
                (0..size / 2).flat_map(|_| ((random.signed().to_bits() >> 16) as u16).to_le_bytes()).collect()
            }
            Content::Floats => floats(random, size / 4).iter().flat_map(|v| v.to_le_bytes()).collect(),
            Content::Positive => floats(random, size / 4).iter().flat_map(|v| (v.abs() + 0.25).to_le_bytes()).collect(),
            Content::Negative => {
                floats(random, size / 4).iter().flat_map(|v| (-v.abs() - 0.25).to_le_bytes()).collect()
            }
            Content::Slopes => {
                floats(random, size / 4).iter().flat_map(|v| ((v.abs() + 0.25) / 32.0).to_le_bytes()).collect()
            }
            Content::Positions => {
                let dim =
                    |name: &str| kernel.dims.iter().position(|dim| dim.name == name).and_then(|i| dims.get(i)).copied();
                let rows = (size / 4) as i64;
                let blocks = |name: &str| 32 * dim(name).unwrap_or(0);
                // The row's own position is in the last block of the part.
                let before = (blocks("places") - 32).max(0);
                let start = blocks("first") + blocks("run_lead") + 4 * blocks("head_runs") + blocks("full") + before;
                let own = match (dim("full_runs"), dim("masked_runs"), dim("run_rest")) {
                    // The first row must see all full runs whole, and the last row's position is in
                    // the last block.
                    (Some(full), Some(masked), Some(rest)) => {
                        let (start, end) = (start + 128 * full, start + 128 * (full + masked) + 32 * rest);
                        let least = (start - 1).max(end - 31 - rows).max(0);
                        let most = match dim("run_lead") {
                            // With a window, the last row must also see all full runs whole. If it
                            // does not with the least position, no position is valid.
                            Some(_) => least,
                            None => end - rows,
                        };
                        least + (random.bits() % 32) as i64 % (most - least + 1).max(1)
                    }
                    // The position is after the full blocks, and after the places before the part.
                    _ => start + (random.bits() % 32) as i64 % (33 - rows).max(1),
                };
                (own..own + rows).flat_map(|p| (p as i32).to_le_bytes()).collect()
            }
            Content::Whole => {
                let dim = |name: &str| kernel.dims.iter().position(|dim| dim.name == name).and_then(|i| dims.get(i));
                // The places of this part are after those of earlier parts.
                let part = dim("places").map(|places| dim("first").copied().unwrap_or(0) + places);
                let most = 32 * dim("entries").copied().or(part).unwrap_or(0);
                let whole = |random: &mut Random| (most - (random.bits() % 32) as i64).max(0) as i32;
                (0..size / 4).flat_map(|_| whole(random).to_le_bytes()).collect()
            }
            Content::Ids => (0..size / 4).flat_map(|_| ((random.bits() % 40) as i32 - 4).to_le_bytes()).collect(),
            Content::Bytes => (0..size).map(|_| random.bits() as u8).collect(),
        };
        // The remaining bytes are less than one element.
        bytes.resize(size, 0);
        bytes
    }
}

/// Returns the number of elements in a row of a buffer whose format has a scale for each row. It
/// comes from the spec; without a spec, the buffer has 16 rows.
fn row_len(format: Format, size: usize, spec: Option<&KernelSpec>) -> usize {
    let of_strip =
        (size / packed::STRIP).saturating_sub(format.tail_bytes()) / format.block_bytes() * format.block_len();
    spec.and_then(KernelSpec::row_len).unwrap_or(of_strip).max(format.block_len())
}

/// Returns random weights in a format with a scale for each row.
fn rows(random: &mut Random, format: Format, size: usize, spec: Option<&KernelSpec>) -> Vec<u8> {
    let row = row_len(format, size, spec);
    let elements = format.elements(size, row).unwrap_or(0);
    let unpacked = format.unpacked_format().unwrap_or(format);
    let x: Vec<u8> = (0..elements).flat_map(|_| (random.signed() * 0.1).to_le_bytes()).collect();
    let rows = requantise(Format::F32, unpacked, &x, row);
    if unpacked == format || elements == 0 {
        return rows;
    }
    let mut data = vec![0; size];
    let strips = elements / row / format.rows();
    let parts = rows.chunks_exact(rows.len() / strips).zip(data.chunks_exact_mut(size / strips));
    parts.for_each(|(rows, strip)| packed::pack(format, rows, strip));
    data
}

fn weights(random: &mut Random, format: Format, size: usize) -> Vec<u8> {
    let block_bytes = format.rows() * format.block_bytes();
    if let Some(rows) = format.unpacked_format() {
        // The blocks of a strip are independent, so each block can be packed separately.
        let mut data = vec![0u8; size / block_bytes * block_bytes];
        let row_bytes = format.block_len() / rows.block_len() * rows.block_bytes();
        for block in data.chunks_exact_mut(block_bytes) {
            packed::pack(format, &weights(random, rows, format.rows() * row_bytes), block);
        }
        return data;
    }
    let mut data = vec![0u8; size / block_bytes * block_bytes];
    for block in data.chunks_exact_mut(block_bytes) {
        match format.codec() {
            Codec::Float(Float::F32) => block.copy_from_slice(&random.signed().to_le_bytes()),
            Codec::Float(Float::F16) => block.copy_from_slice(&f16::from_f32(random.signed()).to_le_bytes()),
            Codec::Float(Float::Bf16) => block.copy_from_slice(&bf16::from_f32(random.signed()).to_le_bytes()),
            Codec::Quants(quants) => {
                block.fill_with(|| random.bits() as u8);
                for (name, ..) in quants.numbers() {
                    format.put(name, random.signed() * 0.01, block);
                }
            }
            Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => unreachable!("{format} is not a weight format"),
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_input_sizes_and_bounds_are_errors() {
        let text = "kernel k where %n in 0..=2147483648 {
  buffer %ids : index(%n) 4
  buffer %y : write 4096*%n + 4
  %0 = splat f32x1 0.0
  store f32x1 %y[0], %0
}";
        let kernel = ixc_ir::kernel::parse::parse(text).unwrap();
        let error = |dims: &[i64]| fill(&kernel, None, dims, 0).unwrap_err();
        assert_eq!(error(&[]), CallError::DimCount { found: 0, expected: vec!["n".into()] }.into());
        assert_eq!(error(&[-1]), CallError::DimRange { name: "n".into(), found: -1, lo: 0, hi: 1 << 31 }.into());
        assert_eq!(error(&[1 << 31]), InputError::TooLarge { most: MAX_BYTES });
        assert_eq!(error(&[0]), InputError::NoIndex { name: "ids".into(), below: 0 });
        assert_eq!(fill(&kernel, None, &[1], 0).unwrap()[0], [0; 4]);
    }
}
