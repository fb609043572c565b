//! Elements of stored tensors: their location and their decoding.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::{Integers, Tiles};
use crate::format::Format;

/// Storage of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// `float8_e4m3fn`: no infinities, one NaN for each sign.
    F8E4m3,
    /// A block of 32 four-bit numbers (OCP MXFP4). A byte has two neighbours, the first in its low
    /// nibble. Views count blocks. Scales are stored separately.
    Mxfp4,
    /// A block of 64 four-bit numbers (NVFP4). A byte has two neighbours, the first in its low
    /// nibble. Views count blocks. Each block has four scales, one E4M3 byte for 16 numbers, stored
    /// separately.
    Nvfp4,
    /// A number in contiguous blocks of a file's block format. Views count numbers.
    Block(Format),
    /// A whole block of a file's block format, which is copied unchanged. Views count blocks.
    Stored(Format),
    /// An integer of a matrix in tiles, with a scale for each row. Views count integers, and
    /// contain whole rows only.
    Tiled(Tiles),
    /// An integer of a matrix with scales by [groups](super::Groups) of columns. Views count
    /// integers.
    Integer(Integers),
    /// A code of bitsandbytes' NF4, for one of the 16 numbers of [`Element::codebook`]. A byte has
    /// two neighbours, the first in its high nibble. The numbers divide a normal distribution into
    /// equal parts.
    Nf4,
    /// A code of bitsandbytes' FP4, stored like NF4: a sign, an exponent of two bits and a mantissa
    /// of one bit. The largest number is 1.
    Fp4,
}

/// Numbers of NF4's codes (QLoRA, appendix E; `get_4bit_type` of bitsandbytes).
const NF4: [f32; 16] = [
    -1.0,
    -0.6961928,
    -0.52507305,
    -0.3949175,
    -0.28444138,
    -0.18477343,
    -0.091050036,
    0.0,
    0.0795803,
    0.1609302,
    0.2461123,
    0.33791524,
    0.44070983,
    0.562617,
    0.72295684,
    1.0,
];
/// Numbers of FP4's codes without their sign. These are bitsandbytes' numbers, divided by the
/// largest.
const FP4: [f32; 8] = [0.0, 0.0625 / 12.0, 8.0 / 12.0, 1.0, 4.0 / 12.0, 6.0 / 12.0, 2.0 / 12.0, 3.0 / 12.0];

/// Size of a block of codes whose one-byte scales are stored separately.
#[derive(Clone, Copy)]
pub(super) struct CodesApart {
    /// Number of the block's scales.
    pub scales: u64,
    /// Number of the block's elements that share a scale.
    pub shared: u64,
}

impl CodesApart {
    /// Returns the number of bytes of the block's codes.
    pub fn bytes(self) -> u64 {
        self.scales * self.shared / 2
    }
}

impl Element {
    /// Returns the codes of a block with separate scales, or `None` for any other element.
    pub(super) fn codes_apart(self) -> Option<CodesApart> {
        match self {
            Element::Mxfp4 => Some(CodesApart { scales: 1, shared: 32 }),
            Element::Nvfp4 => Some(CodesApart { scales: 4, shared: 16 }),
            Element::F32
            | Element::F16
            | Element::Bf16
            | Element::F8E4m3
            | Element::Block(_)
            | Element::Stored(_)
            | Element::Tiled(_)
            | Element::Integer(_)
            | Element::Nf4
            | Element::Fp4 => None,
        }
    }

    /// Returns the numbers that the 16 four-bit codes stand for, before scaling.
    pub fn codebook(self) -> Option<[f32; 16]> {
        match self {
            Element::Nf4 => Some(NF4),
            Element::Fp4 => Some(std::array::from_fn(|code| if code < 8 { FP4[code] } else { -FP4[code - 8] })),
            Element::F32
            | Element::F16
            | Element::Bf16
            | Element::F8E4m3
            | Element::Mxfp4
            | Element::Nvfp4
            | Element::Block(_)
            | Element::Stored(_)
            | Element::Tiled(_)
            | Element::Integer(_) => None,
        }
    }

    /// Returns the element type that reads numbers stored in `format`.
    pub fn from_format(format: Format) -> Element {
        let plain = [Element::F32, Element::F16, Element::Bf16];
        plain.into_iter().find(|element| element.format() == Some(format)).unwrap_or(Element::Block(format))
    }

    /// Returns the number of elements and the number of bytes of a block. Plain numbers and MX
    /// blocks count as blocks of one element.
    pub(super) fn block(self) -> (u64, u64) {
        match self {
            Element::F32 => (1, 4),
            Element::F16 | Element::Bf16 => (1, 2),
            Element::F8E4m3 => (1, 1),
            Element::Mxfp4 | Element::Nvfp4 => (1, self.codes_apart().map_or(0, CodesApart::bytes)),
            Element::Block(format) => (format.block_len() as u64, format.block_bytes() as u64),
            Element::Stored(format) => (1, format.block_bytes() as u64),
            Element::Tiled(tiles) => (tiles.per_byte(), 1),
            Element::Integer(integers) => (integers.per_byte(), 1),
            Element::Nf4 | Element::Fp4 => (2, 1),
        }
    }

    /// Returns the location of `count` elements from `first` on in the stored tensor: the offset of
    /// the first byte of their blocks, and the number of bytes.
    pub(super) fn span(self, first: u64, count: u64) -> Option<(u64, u64)> {
        if let Element::Tiled(tiles) = self {
            return tiles.span(first, count);
        }
        let (len, bytes) = self.block();
        let (begin, end) = (first / len, first.checked_add(count)?.div_ceil(len));
        Some((begin.checked_mul(bytes)?, (end - begin).checked_mul(bytes)?))
    }

    /// Returns the number of bytes of `count` elements, in whole blocks, or `None` on overflow.
    pub fn bytes_of(self, count: u64) -> Option<u64> {
        self.span(0, count).map(|(_, bytes)| bytes)
    }

    /// Returns the number of matrix columns that one element holds: more than one if an element is
    /// a block.
    pub fn columns(self) -> u64 {
        match self {
            Element::Stored(format) => format.block_len() as u64,
            _ => self.codes_apart().map_or(1, |codes| codes.scales * codes.shared),
        }
    }

    /// Returns the format of elements after scaling. FP8, NF4 and FP4 numbers become the nearest
    /// bf16, and the numbers of a block stay exact. A matrix in tiles keeps its integers, with a
    /// scale for each row. Integers with scales by groups become blocks with the nearest f16 as
    /// their scale.
    pub fn scaled_format(self) -> Format {
        match self {
            Element::F32 | Element::Block(_) => Format::F32,
            Element::F16 => Format::F16,
            Element::Bf16 | Element::F8E4m3 | Element::Nf4 | Element::Fp4 => Format::Bf16,
            Element::Mxfp4 => Format::Mxfp4,
            Element::Stored(format) => format,
            Element::Nvfp4 => Format::Nvfp4,
            Element::Integer(integers) => integers.format(),
            Element::Tiled(Tiles { bits: 4, .. }) => Format::I4Row,
            Element::Tiled(_) => Format::I8Row,
        }
    }

    /// Returns the format of rows that are scaled to length 1: `scaled_format` for plain floats,
    /// and `f16` for all other elements.
    pub fn unit_format(self) -> Format {
        match self {
            Element::F32 | Element::F16 | Element::Bf16 => self.scaled_format(),
            Element::F8E4m3
            | Element::Mxfp4
            | Element::Nvfp4
            | Element::Block(_)
            | Element::Stored(_)
            | Element::Integer(_)
            | Element::Tiled(_)
            | Element::Nf4
            | Element::Fp4 => Format::F16,
        }
    }

    /// Returns the block format that stores the same numbers in the same bytes, or `None`.
    pub fn format(self) -> Option<Format> {
        match self {
            Element::F32 => Some(Format::F32),
            Element::F16 => Some(Format::F16),
            Element::Bf16 => Some(Format::Bf16),
            Element::Stored(format) => Some(format),
            Element::F8E4m3
            | Element::Mxfp4
            | Element::Nvfp4
            | Element::Block(_)
            | Element::Tiled(_)
            | Element::Integer(_)
            | Element::Nf4
            | Element::Fp4 => None,
        }
    }

    /// Whether an element is a number without a separate scale, which conversions can read.
    /// Conversions cannot read other elements; their codes and scales are copied.
    pub fn is_number(self) -> bool {
        match self {
            Element::F32
            | Element::F16
            | Element::Bf16
            | Element::F8E4m3
            | Element::Block(_)
            | Element::Nf4
            | Element::Fp4 => true,
            Element::Mxfp4 | Element::Nvfp4 | Element::Stored(_) | Element::Tiled(_) | Element::Integer(_) => false,
        }
    }

    /// Converts stored bytes to numbers. The first byte is the start of an element.
    pub(super) fn floats(self, bytes: &[u8], out: &mut [f32]) {
        let pairs = || bytes.as_chunks::<2>().0.iter();
        match self {
            Element::F32 => {
                out.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes));
            }
            Element::F16 => out.iter_mut().zip(pairs()).for_each(|(x, bytes)| *x = f16::from_le_bytes(*bytes).to_f32()),
            Element::Bf16 => {
                out.iter_mut().zip(pairs()).for_each(|(x, bytes)| *x = bf16::from_le_bytes(*bytes).to_f32());
            }
            Element::F8E4m3 => out.iter_mut().zip(bytes).for_each(|(x, byte)| *x = f8_e4m3(*byte)),
            Element::Nf4 | Element::Fp4 => {
                let numbers = self.codebook().unwrap_or_default();
                let codes = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                out.iter_mut().zip(codes).for_each(|(x, code)| *x = numbers[usize::from(code)]);
            }
            // Unreachable: callers copy or convert these elements as whole blocks or as integers.
            Element::Mxfp4
            | Element::Nvfp4
            | Element::Block(_)
            | Element::Stored(_)
            | Element::Tiled(_)
            | Element::Integer(_) => {}
        }
    }
}

/// Returns the number that a byte of `float8_e4m3fn` stands for. The exponent's bias is 7. The
/// largest exponent with all mantissa bits set is NaN.
pub(super) fn f8_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { size } else { -size }
}
