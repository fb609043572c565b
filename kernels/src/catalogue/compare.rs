//! Comparison of the results of two runs of a kernel. Every byte of every buffer except scratch
//! must be equal. Two NaNs count as equal, because arithmetic may give NaNs with any bits.
//!
//! ```text
//! buffer %y: 2 of 32 f32 differ, first element 5 (byte 20): expected 1.5 (0x3fc00000), found 1.25 (0x3fa00000)
//! ```

use std::fmt;

use half::{bf16, f16};
use ixc_ir::kernel::{BufferKind, Elem, Kernel, Op, Stmt};

/// The first element of a buffer in which two runs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the buffer.
    pub buffer: String,
    /// Type of the buffer's elements.
    pub elem: Elem,
    /// Index of the element.
    pub element: usize,
    /// Byte offset of the element.
    pub offset: usize,
    /// Bytes of the element in the expected buffer.
    pub expected: Vec<u8>,
    /// Bytes of the element in the actual buffer.
    pub found: Vec<u8>,
    /// Number of elements that differ.
    pub different: usize,
    /// Number of elements in the buffer.
    pub elements: usize,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { buffer, elem, element, offset, different, elements, .. } = self;
        write!(
            f,
            "buffer %{buffer}: {different} of {elements} {} differ, first element {element} (byte {offset}): expected {}, \
             found {}",
            elem.name(),
            Shown(*elem, &self.expected),
            Shown(*elem, &self.found)
        )
    }
}

/// An element, shown by its value and its bits.
struct Shown<'a>(Elem, &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Elem::F32, &[a, b, c, d]) => {
                let bits = u32::from_le_bytes([a, b, c, d]);
                write!(f, "{:?} ({bits:#010x})", f32::from_bits(bits))
            }
            (Elem::F16, &[a, b]) => {
                let bits = u16::from_le_bytes([a, b]);
                write!(f, "{:?} ({bits:#06x})", f16::from_bits(bits).to_f32())
            }
            (Elem::I32, &[a, b, c, d]) => write!(f, "{}", i32::from_le_bytes([a, b, c, d])),
            (Elem::I16, &[a, b]) => write!(f, "{}", i16::from_le_bytes([a, b])),
            (_, bytes) => {
                f.write_str("0x")?;
                bytes.iter().rev().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Returns, for each buffer, the element type of the kernel's loads and stores. If there are
/// several types, returns bytes. If the kernel does not access the buffer, returns `None`.
pub fn elements(kernel: &Kernel) -> Vec<Option<Elem>> {
    let mut elements = vec![None; kernel.buffers.len()];
    visit(&kernel.body, &mut elements);
    elements
}

fn visit(body: &[Stmt], elements: &mut [Option<Elem>]) {
    for statement in body {
        match statement {
            Stmt::For(inner) => visit(&inner.body, elements),
            Stmt::LoadIndex { address, .. } => note(elements, address.buffer.index(), Elem::I32),
            Stmt::Inst(inst) => {
                // A prefetch does not have an element type.
                if let Some(address) = inst.address.as_ref().filter(|_| inst.op != Op::Prefetch) {
                    note(elements, address.buffer.index(), inst.ty.elem);
                }
            }
        }
    }
}

fn note(elements: &mut [Option<Elem>], buffer: usize, elem: Elem) {
    if let Some(known) = elements.get_mut(buffer) {
        *known = Some(if known.is_none_or(|known| known == elem) { elem } else { Elem::I8 });
    }
}

/// Returns the first difference between the expected and the actual buffers of a kernel.
pub fn first_difference(kernel: &Kernel, expected: &[Vec<u8>], found: &[Vec<u8>]) -> Option<Difference> {
    let elements = elements(kernel);
    let pairs = kernel.buffers.iter().zip(elements).zip(expected.iter().zip(found));
    pairs
        .filter(|((buffer, _), _)| buffer.kind != BufferKind::Scratch)
        .find_map(|((buffer, elem), (expected, found))| difference(&buffer.name, elem, expected, found))
}

/// Whether an element is NaN.
fn is_nan(elem: Elem, bytes: &[u8]) -> bool {
    match (elem, bytes) {
        (Elem::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).is_nan(),
        (Elem::F16, &[a, b]) => f16::from_le_bytes([a, b]).is_nan(),
        (Elem::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).is_nan(),
        _ => false,
    }
}

/// Returns the sum of squared errors divided by the sum of squared expected values. Returns `None`
/// if the elements are not floats.
pub fn nmse(elem: Elem, expected: &[u8], found: &[u8]) -> Option<f64> {
    let value: fn(&[u8]) -> f64 = match elem {
        Elem::F32 => |bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        Elem::F16 => |bytes| f16::from_le_bytes([bytes[0], bytes[1]]).into(),
        Elem::Bf16 => |bytes| bf16::from_le_bytes([bytes[0], bytes[1]]).into(),
        Elem::I8 | Elem::I16 | Elem::I32 => return None,
    };
    let width = elem.bytes() as usize;
    let pairs = expected.chunks_exact(width).zip(found.chunks_exact(width)).map(|(a, b)| (value(a), value(b)));
    let (error, all) = pairs.fold((0.0, 0.0), |(error, all), (a, b)| (error + (a - b) * (a - b), all + a * a));
    Some(if error == 0.0 { 0.0 } else { error / all })
}

/// Returns the first difference between two versions of a buffer. If their lengths differ, the
/// missing elements count as different.
pub fn difference(buffer: &str, elem: Option<Elem>, expected: &[u8], found: &[u8]) -> Option<Difference> {
    if expected == found {
        return None;
    }
    let elem = elem.unwrap_or(Elem::I8);
    let bytes = elem.bytes() as usize;
    let elements = expected.len().max(found.len()).div_ceil(bytes);
    let part = |data: &[u8], element: usize| {
        let start = (element * bytes).min(data.len());
        data[start..(start + bytes).min(data.len())].to_vec()
    };
    let differs = |(a, b): (&[u8], &[u8])| a != b && !(is_nan(elem, a) && is_nan(elem, b));
    let different: Vec<usize> = (0..elements).filter(|&e| differs((&part(expected, e), &part(found, e)))).collect();
    let element = *different.first()?;
    Some(Difference {
        buffer: buffer.to_owned(),
        elem,
        element,
        offset: element * bytes,
        expected: part(expected, element),
        found: part(found, element),
        different: different.len(),
        elements,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_reported_by_element() {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let (a, b) = (bytes(&[1.0, 1.5, 2.0]), bytes(&[1.0, 1.25, 2.5]));
        assert_eq!(difference("y", Some(Elem::F32), &a, &a), None);
        assert_eq!(
            difference("y", Some(Elem::F32), &a, &b).unwrap().to_string(),
            "buffer %y: 2 of 3 f32 differ, first element 1 (byte 4): expected 1.5 (0x3fc00000), found 1.25 (0x3fa00000)"
        );
        let short = difference("y", None, &[1, 2], &[1]).unwrap();
        assert_eq!(short.to_string(), "buffer %y: 1 of 2 i8 differ, first element 1 (byte 1): expected 0x02, found 0x");
        // NaNs with different bits are equal, but a NaN and a number are not.
        let nan = |bits: [u32; 2]| bits.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>();
        let (a, b) = (nan([0x7fc0_0000, 1]), nan([0xffc0_1234, 1]));
        assert_eq!(difference("y", Some(Elem::F32), &a, &b), None);
        assert!(difference("y", Some(Elem::I32), &a, &b).is_some());
        assert!(difference("y", Some(Elem::F32), &a, &nan([0x7f80_0000, 1])).is_some());
        // Negative zero and zero are different.
        assert!(difference("y", Some(Elem::F32), &bytes(&[0.0]), &bytes(&[-0.0])).is_some());
    }
}
