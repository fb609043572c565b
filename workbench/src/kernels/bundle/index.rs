//! `index.json`: what the files of a folder are.

use ixc_ir::kernel::{BufferKind, Elem};
use serde::{Deserialize, Serialize};

/// Name of the index in its folder.
pub const FILE: &str = "index.json";
/// What [`Index::format`] says.
pub const FORMAT: &str = "ixc-kernel";
/// What [`Index::version`] says.
pub const VERSION: u64 = 1;

/// Most bytes of an index: a thousand times what is written.
pub const MOST_INDEX: u64 = 4 << 20;
/// Most bytes of code.
pub const MOST_CODE: u64 = 16 << 20;
/// Most bytes of all buffers together.
pub const MOST_BUFFERS: u64 = ixc_kernels::catalogue::inputs::MOST_BYTES;
/// Most buffers, and most dims.
pub const MOST_ARGUMENTS: u64 = 64;
/// Most characters of a file name.
pub const MOST_NAME: usize = 100;

/// The index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u64,
    /// Version of the program that wrote it.
    pub ixc: String,
    /// The kernel's name.
    pub kernel: String,
    /// The text of its spec, where it has one.
    pub spec: Option<String>,
    /// The target that it was compiled for.
    pub target: String,
    /// CPU features that its instructions need, as `/proc/cpuinfo` spells them.
    pub features: Vec<String>,
    /// The code.
    pub code: Code,
    /// How it is called.
    pub call: Call,
    /// The values that the second argument points at, in this order.
    pub dims: Vec<Dim>,
    /// The buffers that the first argument points at the pointers of, in this order.
    pub buffers: Vec<Buffer>,
}

/// Machine code in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// The file, with its whole length.
    #[serde(flatten)]
    pub file: File,
    /// Bytes of instructions; behind them are padding and constants.
    pub instruction_bytes: u64,
    /// Offset of the first instruction that is executed.
    pub entry: u64,
    /// What the address of the first byte must be a multiple of.
    pub alignment: u64,
}

/// How code is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// `sysv64`.
    pub convention: String,
    /// What the arguments are, in words.
    pub arguments: Vec<String>,
}

/// A dim and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dim {
    /// Its name.
    pub name: String,
    /// Its value in this call.
    pub value: i64,
    /// Smallest value that the kernel is for.
    pub lo: i64,
    /// Largest.
    pub hi: i64,
}

/// A file: its name, length and checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its name in the folder.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 of its bytes, in eight hexadecimal digits.
    pub crc32: String,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Its name.
    pub name: String,
    /// What the kernel may do with it.
    pub kind: Kind,
    /// Its size.
    pub bytes: u64,
    /// What its elements are, for reports; bytes where they are mixed.
    pub elements: Elements,
    /// Index buffers: every 32-bit value is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<i64>,
    /// Its contents before the call; `None` where it is filled with [`Buffer::fill`].
    pub input: Option<File>,
    /// The byte that it is filled with before the call where it has no input file.
    pub fill: u8,
    /// Its contents after the call; `None` where they are open, or where it is only read and must not change.
    pub expected: Option<File>,
}

/// What a kernel may do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Both.
    ReadWrite,
    /// Both, for its own use.
    Scratch,
    /// Read 32-bit values as indices.
    Index,
}

impl Kind {
    /// Of a buffer in kernel IR.
    pub fn of(kind: &BufferKind) -> Kind {
        match kind {
            BufferKind::Read => Kind::Read,
            BufferKind::Write => Kind::Write,
            BufferKind::ReadWrite => Kind::ReadWrite,
            BufferKind::Scratch => Kind::Scratch,
            BufferKind::Index { .. } => Kind::Index,
        }
    }

    /// Whether the kernel may write it.
    pub fn is_written(self) -> bool {
        match self {
            Kind::Write | Kind::ReadWrite | Kind::Scratch => true,
            Kind::Read | Kind::Index => false,
        }
    }
}

/// What a buffer's elements are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Elements(String);

impl Elements {
    /// Of a type of kernel IR.
    pub fn of(elem: Option<Elem>) -> Elements {
        Elements(elem.unwrap_or(Elem::I8).name().to_owned())
    }

    /// The type; bytes where nothing is known by that name.
    pub fn elem(&self) -> Elem {
        Elem::ALL.into_iter().find(|elem| elem.name() == self.0).unwrap_or(Elem::I8)
    }
}
