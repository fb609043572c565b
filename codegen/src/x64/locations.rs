//! Types of instruction selection: locations of values, and forms of entry numbers in table
//! lookups.

use ixc_ir::kernel::{Op, Type, ValueId};

use super::families::{BinaryOp, Bitwise, Comparison, Computation, Family};
use super::machine::{Mem, Vreg};

/// Location of a value.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// No location: the value is not defined yet, or all uses are past.
    Undefined,
    /// A virtual register.
    Register(Vreg),
    /// A load that is deferred to its use.
    Pending(usize),
    /// An op that is deferred to its use.
    Deferred(usize),
}

/// A load that is deferred to its use.
#[derive(Clone, Copy)]
pub struct Pending {
    /// The value that the load defines.
    pub owner: ValueId,
    /// Type of the value.
    pub ty: Type,
    /// The memory operand.
    pub mem: Mem,
    /// Whether one element is broadcast to every lane.
    pub splat: bool,
    /// Number of uses that remain.
    pub uses: u32,
    /// Number of the IR statement.
    pub origin: u32,
}

/// An op that can be merged with its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferredOp {
    Bitwise(Bitwise),
    Comparison(Comparison),
    /// Products of pairs of words.
    Dot2S16,
}

impl DeferredOp {
    /// Returns the deferrable op for an op of the IR, if there is one.
    pub fn from_op(op: Op) -> Option<DeferredOp> {
        match Family::from_op(op).computation()? {
            Computation::Bitwise(op) => Some(DeferredOp::Bitwise(op)),
            Computation::Comparison(op) => Some(DeferredOp::Comparison(op)),
            Computation::Binary(op) => (op == BinaryOp::Dot2S16).then_some(DeferredOp::Dot2S16),
            Computation::Slice
            | Computation::Combine(_)
            | Computation::SwapPairs
            | Computation::Interleave
            | Computation::Lookup
            | Computation::LookupQuarter
            | Computation::LookupByte
            | Computation::Multishift
            | Computation::Unary(_)
            | Computation::Shift(_)
            | Computation::Fma
            | Computation::Select
            | Computation::Dot4U8S8
            | Computation::Dot2Bf16
            | Computation::ToBf16
            | Computation::ToBf16Pairs
            | Computation::Bf16ToF32
            | Computation::Extend(_)
            | Computation::NarrowS
            | Computation::Reduce(_) => None,
        }
    }

    /// Returns the bitwise op, if this is one.
    pub fn bitwise(self) -> Option<Bitwise> {
        if let DeferredOp::Bitwise(op) = self { Some(op) } else { None }
    }

    /// Returns the comparison, if this is one.
    pub fn comparison(self) -> Option<Comparison> {
        if let DeferredOp::Comparison(op) = self { Some(op) } else { None }
    }

    /// Returns `Some` if this op is the product of pairs of words.
    pub fn dot2_s16(self) -> Option<()> {
        (self == DeferredOp::Dot2S16).then_some(())
    }
}

/// An op that waits for its use.
#[derive(Clone, Copy)]
pub struct DeferredValue {
    /// The value that the op defines.
    pub value: ValueId,
    /// The op.
    pub op: DeferredOp,
    /// Type of the result.
    pub ty: Type,
    /// The two operand values.
    pub operands: [ValueId; 2],
    /// Number of uses that remain.
    pub uses: u32,
    /// Number of the IR statement.
    pub origin: u32,
}

/// Memory operands that an instruction accepts in place of a register.
#[derive(Clone, Copy)]
pub struct Read {
    /// Bytes that an instruction reads of a memory operand.
    pub bytes: u32,
    /// Whether one 32-bit lane, broadcast to all lanes, is accepted.
    pub splat: bool,
}

impl Read {
    /// Accepts memory of `bytes` bytes.
    pub fn plain(bytes: u32) -> Read {
        Read { bytes, splat: false }
    }

    /// Accepts memory of `bytes` bytes, or one 32-bit lane that is broadcast to `bytes` bytes.
    pub fn lanes32(bytes: u32) -> Read {
        Read { bytes, splat: true }
    }
}

/// Prepared entry numbers for the four quarters of `lookup_quarter`.
#[derive(Clone, Copy)]
pub enum Numbers {
    /// Bytes in memory, four quarters for each lane.
    Memory(Mem),
    /// Entry numbers as words. Every 16 bytes have four lanes of one quarter, then four lanes of
    /// the next. The first vector has quarters 0 and 1, the second 2 and 3.
    Apart([Vreg; 2]),
    /// Entries that were already looked up, as words in the order of `Apart`, with their packing.
    Words([Vreg; 2], Halves),
}

/// Packing of 32-bit table entries into words: the upper half of an entry is shifted to bits that
/// are free in all lower halves.
#[derive(Clone, Copy)]
pub struct Halves {
    /// Shift of the upper half, in bits.
    pub by: u32,
    /// Mask of the bits that any half of an entry uses.
    pub own: u16,
}

impl Halves {
    /// Returns the packing for a table, or `None` if the two halves of its entries do not fit into
    /// a word.
    pub fn from_entries(entries: &[u32]) -> Option<Halves> {
        let own = entries.iter().fold(0, |own, entry| own | *entry as u16 | (entry >> 16) as u16);
        let apart = |by: u32| {
            let moved = u32::from(own) << by;
            moved <= u16::MAX.into() && moved as u16 & own == 0 && own >> by & own == 0
        };
        (1..u16::BITS).find(|by| apart(*by)).map(|by| Halves { by, own })
    }

    /// Packs an entry.
    pub fn word(self, entry: u32) -> u16 {
        entry as u16 | ((entry >> 16) as u16) << self.by
    }
}
