//! Kernel IR: one kernel as structured vector SSA over byte buffers, before any machine instruction
//! is selected.
//!
//! A kernel has *dims* (run-time sizes, each with a range), *buffers* and a body of statements.
//! Buffers are parameters whose size in bytes is affine in the dims. Loops are counted. Every
//! address is a constant plus multiples of loop variables, dims and checked index values.
//! [`verify`] can therefore prove every access in bounds without running the kernel.
//!
//! ```text
//! kernel scale_f32 where %n in 0..=1024 {
//!   buffer %x : read 32*%n
//!   buffer %y : write 32*%n
//!   %two = splat f32x8 2.0
//!   for %i in 0..%n {
//!     %a = load f32x8 %x[32*%i]
//!     %b = mul f32x8 %a, %two
//!     store f32x8 %y[32*%i], %b
//!   }
//! }
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`op`] | the op table: mnemonic, operands, type rule, one line of documentation |
//! | [`affine`] | affine expressions over loop variables and dims |
//! | [`builder`] | construction of kernels in Rust |
//! | [`call`] | the check of a call's dims, and of its number of buffers |
//! | [`interpret`] | the reference interpreter: the definition of every op |
//! | [`number`] | canonical numbering of values |
//! | [`parse`], [`mod@print`] | the text form |
//! | [`products`] | the number of multiply-adds of a call |
//! | [`verify`] | the proof that a kernel is well formed and stays inside its buffers |
//!
//! Invariant: the IR describes the computation. No op names an instruction, and no op depends on
//! the target.

pub mod affine;
pub mod builder;
pub mod call;
mod depth;
pub mod interpret;
pub mod number;
pub mod op;
pub mod parse;
pub mod print;
pub mod products;
pub mod verify;

use serde::{Deserialize, Serialize};

pub use affine::{Affine, Atom};
pub use builder::KernelBuilder;
pub use call::CallError;
pub use op::{Op, QUARTERS};

/// Element type of a vector or a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Elem {
    /// 8-bit integer. Each op defines whether it is signed.
    I8,
    /// 16-bit integer.
    I16,
    /// 32-bit integer. Comparisons give masks of this type: each lane is all ones or all zeros.
    I32,
    /// IEEE half. Ops only store it or convert it to f32 for arithmetic.
    F16,
    /// The upper half of an IEEE single. Most ops only store it or convert it to f32.
    Bf16,
    /// IEEE single.
    F32,
}

impl Elem {
    /// Every element type, for tables and property tests.
    pub const ALL: [Elem; 6] = [Elem::I8, Elem::I16, Elem::I32, Elem::F16, Elem::Bf16, Elem::F32];

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Elem::I8 => 1,
            Elem::I16 | Elem::F16 | Elem::Bf16 => 2,
            Elem::I32 | Elem::F32 => 4,
        }
    }

    /// Returns the name in IR text.
    pub const fn name(self) -> &'static str {
        match self {
            Elem::I8 => "i8",
            Elem::I16 => "i16",
            Elem::I32 => "i32",
            Elem::F16 => "f16",
            Elem::Bf16 => "bf16",
            Elem::F32 => "f32",
        }
    }
}

/// Type of a vector or a tile.
///
/// The number of lanes of a vector is a power of two; a scalar has one lane. A vector has at most
/// [`Type::MAX_BYTES`]. A tile is a matrix of up to [`Type::MAX_ROWS`] rows, each of 4 to
/// [`Type::MAX_BYTES`] bytes, a multiple of 4. Only ops whose names begin with `tile_`, and carried
/// values, have tiles as operands and results. The IR does not limit the number of live tiles. A
/// lowering fails if its target has too few tile registers (x86 has 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Type {
    /// Element type.
    pub elem: Elem,
    /// Number of elements of a vector, or of one row of a tile.
    pub lanes: u16,
    /// Number of rows of a tile, or 0 for a vector.
    pub rows: u8,
}

impl Type {
    /// Maximum number of bytes of a vector: those of a 512-bit register.
    pub const MAX_BYTES: u32 = 64;
    /// Maximum number of rows of a tile.
    pub const MAX_ROWS: u8 = 16;
    /// Maximum number of bytes of a tile.
    pub const MAX_TILE_BYTES: u32 = Type::MAX_BYTES * Type::MAX_ROWS as u32;

    /// Returns the vector type `elem x lanes`.
    pub const fn new(elem: Elem, lanes: u16) -> Type {
        Type { elem, lanes, rows: 0 }
    }

    /// Returns the tile type with `rows` rows of `lanes` elements each.
    pub const fn tile(elem: Elem, rows: u8, lanes: u16) -> Type {
        Type { elem, lanes, rows }
    }

    /// Returns `f32 x lanes`.
    pub const fn f32(lanes: u16) -> Type {
        Type::new(Elem::F32, lanes)
    }

    /// Returns `i32 x lanes`.
    pub const fn i32(lanes: u16) -> Type {
        Type::new(Elem::I32, lanes)
    }

    /// Returns `i16 x lanes`.
    pub const fn i16(lanes: u16) -> Type {
        Type::new(Elem::I16, lanes)
    }

    /// Returns `i8 x lanes`.
    pub const fn i8(lanes: u16) -> Type {
        Type::new(Elem::I8, lanes)
    }

    /// Returns `f16 x lanes`.
    pub const fn f16(lanes: u16) -> Type {
        Type::new(Elem::F16, lanes)
    }

    /// Returns `bf16 x lanes`.
    pub const fn bf16(lanes: u16) -> Type {
        Type::new(Elem::Bf16, lanes)
    }

    /// Whether this is a tile, not a vector.
    pub const fn is_tile(self) -> bool {
        self.rows > 0
    }

    /// Returns the size in bytes. For a tile, this includes all rows.
    pub const fn bytes(self) -> u32 {
        self.row_bytes() * if self.is_tile() { self.rows as u32 } else { 1 }
    }

    /// Returns the size in bytes of one row of a tile, or of a vector.
    pub const fn row_bytes(self) -> u32 {
        self.elem.bytes() * self.lanes as u32
    }

    /// Returns the number of bytes from the first to the last byte of an access. For a vector, this
    /// is its size. For a tile, it is `(rows - 1) * stride` plus one row. Returns `None` for a
    /// stride beyond [`op::MAX_STRIDE`], which the type rules reject.
    pub const fn extent(self, stride: i64) -> Option<u64> {
        if !self.is_tile() {
            return Some(self.bytes() as u64);
        }
        if stride < 0 || stride > op::MAX_STRIDE {
            return None;
        }
        Some((self.rows as u64 - 1) * stride as u64 + self.row_bytes() as u64)
    }

    /// Whether the type is a valid vector or tile. The verifier rejects kernels with other types.
    pub const fn is_valid(self) -> bool {
        let bytes = self.row_bytes();
        let fits = 0 < bytes && bytes <= Type::MAX_BYTES;
        match self.is_tile() {
            true => fits && bytes.is_multiple_of(4) && self.rows <= Type::MAX_ROWS,
            false => fits && self.lanes.is_power_of_two(),
        }
    }
}

impl std::fmt::Display for Type {
    /// Writes types such as `f32x8`. Scalars are `f32x1`, and a tile of 16 rows of 64 bytes is
    /// `tile<16x64xi8>`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_tile() {
            return write!(f, "tile<{}x{}x{}>", self.rows, self.lanes, self.elem.name());
        }
        write!(f, "{}x{}", self.elem.name(), self.lanes)
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the index in the kernel's list of these items.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// An SSA value of a kernel, a vector or a tile. [`Kernel::values`] has its type.
    ValueId
    /// A loop variable or an index value of a kernel. [`Kernel::vars`] has its name.
    VarId
    /// A run-time size of a kernel, an index into [`Kernel::dims`].
    DimId
    /// A buffer of a kernel, an index into [`Kernel::buffers`].
    BufferId
}

/// A run-time size, in `lo..=hi`. The caller checks the range before the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dim {
    /// Name without `%`.
    pub name: String,
    /// Smallest value, at least 0.
    pub lo: i64,
    /// Largest value, at most [`Dim::MAX`].
    pub hi: i64,
}

impl Dim {
    /// Maximum value of a dim. With the limit on coefficients, it ensures that the 128-bit
    /// arithmetic of the bounds proof does not overflow.
    pub const MAX: i64 = 1 << 31;
}

/// Access of a kernel to a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BufferKind {
    /// Read only.
    Read,
    /// Write only. The buffer's content before the call is arbitrary.
    Write,
    /// Read and write.
    ReadWrite,
    /// Working memory of the calling thread, read and written. Its content is arbitrary before and
    /// after the call.
    Scratch,
    /// Read-only `u32` values, each less than `below`, which is affine in dims. The caller has
    /// checked the values.
    Index {
        /// Exclusive upper bound of every value.
        below: Affine,
    },
}

impl BufferKind {
    /// Whether the buffer holds a result of the kernel. Scratch memory is also written, but holds
    /// no result.
    pub fn is_result(&self) -> bool {
        matches!(self, BufferKind::Write | BufferKind::ReadWrite)
    }
}

/// A buffer parameter of a kernel: memory that the caller provides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Name without `%`.
    pub name: String,
    /// Accesses that the kernel may make.
    pub kind: BufferKind,
    /// Size in bytes, affine in dims. A negative size means an empty buffer.
    pub size: Affine,
}

/// An address in a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Buffer that the address is in.
    pub buffer: BufferId,
    /// Byte offset, affine in loop variables, index values and dims. No alignment is assumed.
    pub offset: Affine,
}

/// Constant operand of an op, part of the instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Imm {
    /// No immediate.
    None,
    /// An integer.
    Int(i64),
    /// A float. Its text form reads back to the same bits.
    Float(f32),
    /// Bytes of a constant vector: as many as the result has.
    Bytes(Vec<u8>),
}

/// A computation statement: an op with its operands and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inst {
    /// Op of the computation.
    pub op: Op,
    /// Type of the result, or of the stored value.
    pub ty: Type,
    /// Operands, in the order of the op table.
    pub operands: Vec<ValueId>,
    /// Immediate, of the kind that the op table lists.
    pub imm: Imm,
    /// Address of the memory access. `None` for `index`, which has its affine value in
    /// [`Inst::index`].
    pub address: Option<Address>,
    /// The affine value of `index`.
    pub index: Option<Affine>,
    /// Value that the instruction defines. `None` for `store` and `tile_store`.
    pub result: Option<ValueId>,
}

/// A value that a loop carries from one iteration to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carry {
    /// Value inside the body, at its start.
    pub inner: ValueId,
    /// Value before the first iteration, defined outside the loop.
    pub init: ValueId,
    /// Value that the body passes to the next iteration (an operand of `yield`).
    pub next: ValueId,
    /// Value after the loop. It is `init` if the loop had no iterations.
    pub result: ValueId,
}

/// A counted loop: `var` runs from 0 to `trip - 1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct For {
    /// Loop variable.
    pub var: VarId,
    /// Number of iterations, affine in dims. It may be 0, but never negative.
    pub trip: Affine,
    /// Values that the loop carries between iterations.
    pub carries: Vec<Carry>,
    /// Statements of the loop's body.
    #[serde(deserialize_with = "depth::deserialize_body")]
    pub body: Vec<Stmt>,
}

/// A statement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stmt {
    /// A computation.
    Inst(Inst),
    /// A loop.
    For(For),
    /// A load of a `u32` from an index buffer. The value becomes a variable for addresses:
    /// `%row = load_index %ids[4*%i]`.
    LoadIndex {
        /// Variable that the statement defines. Its range is `0..below`, with the buffer's `below`.
        var: VarId,
        /// Address of the value, in a [`BufferKind::Index`] buffer.
        address: Address,
    },
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Name, which is also the cache key, the profiler symbol and the name of dump files.
    pub name: String,
    /// Run-time sizes, in the order in which the caller passes them.
    pub dims: Vec<Dim>,
    /// Buffers, in the order in which the caller passes them.
    pub buffers: Vec<Buffer>,
    /// Types of all values, by value id.
    pub values: Vec<Type>,
    /// Names of all loop variables and index values, without `%`. All are different.
    pub vars: Vec<String>,
    /// Statements of the kernel's body.
    pub body: Vec<Stmt>,
}

impl Kernel {
    /// Returns the type of a value.
    pub fn ty(&self, value: ValueId) -> Type {
        self.values[value.index()]
    }
}
