//! `index.json`: descriptions of the files in the folder.

use ixc_ir::kernel::{BufferKind, Elem};
use serde::{Deserialize, Serialize};

/// Name of the index in its folder.
pub const FILE: &str = "index.json";
/// Value of [`Index::format`].
pub const FORMAT: &str = "ixc-kernel";
/// Value of [`Index::version`].
pub const VERSION: u64 = 1;

/// Max bytes of an index: a thousand times the usual size.
pub const MAX_INDEX: u64 = 4 << 20;
/// Max bytes of code.
pub const MAX_CODE: u64 = 16 << 20;
/// Max bytes of all buffers together.
pub const MAX_BUFFERS: u64 = ixc_kernels::catalogue::inputs::MAX_BYTES;
/// Max number of buffers, and max number of dims.
pub const MAX_ARGUMENTS: u64 = 64;
/// Max number of characters in a file name.
pub const MAX_NAME: usize = 100;

/// The index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u64,
    /// Version of `ixc` that wrote the bundle.
    pub ixc: String,
    /// The kernel's name.
    pub kernel: String,
    /// Text of the kernel's spec, if it has one.
    pub spec: Option<String>,
    /// Target of the compilation.
    pub target: String,
    /// CPU features that its instructions need, named as in `/proc/cpuinfo`.
    pub features: Vec<String>,
    /// The code.
    pub code: Code,
    /// Calling convention and arguments.
    pub call: Call,
    /// Values in the array of the second argument, in order.
    pub dims: Vec<Dim>,
    /// Buffers whose pointers are in the array of the first argument, in order.
    pub buffers: Vec<Buffer>,
}

/// Machine code in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// File, with its whole length.
    #[serde(flatten)]
    pub file: File,
    /// Bytes of instructions; padding and constants follow.
    pub instruction_bytes: u64,
    /// Offset of the first executed instruction.
    pub entry: u64,
    /// Alignment of the address of the first byte.
    pub alignment: u64,
}

/// Calling convention of the code, and the arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// `sysv64`.
    pub convention: String,
    /// Descriptions of the arguments.
    pub arguments: Vec<String>,
}

/// A dim and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dim {
    /// Name of the dim.
    pub name: String,
    /// Value in this call.
    pub value: i64,
    /// Smallest allowed value.
    pub lo: i64,
    /// Largest allowed value.
    pub hi: i64,
}

/// A file: its name, length and checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Name in the folder.
    pub file: String,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of the file's bytes, in eight hexadecimal digits.
    pub crc32: String,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Name of the buffer.
    pub name: String,
    /// Access of the kernel to the buffer.
    pub kind: BufferAccess,
    /// Size in bytes.
    pub bytes: u64,
    /// Type of the elements, for reports; bytes if types are mixed.
    pub elements: Elements,
    /// Bound of an index buffer: every 32-bit value is below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<i64>,
    /// Contents before the call; `None` if the buffer is filled with [`Buffer::fill`].
    pub input: Option<File>,
    /// Byte that fills the buffer before the call if there is no input file.
    pub fill: u8,
    /// Contents after the call. `None` if they are undefined, or if the buffer is only read and
    /// must not change.
    pub expected: Option<File>,
}

/// Access of a kernel to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferAccess {
    /// Read the buffer.
    Read,
    /// Write the buffer.
    Write,
    /// Read and write the buffer.
    ReadWrite,
    /// Scratch memory of the kernel.
    Scratch,
    /// Read 32-bit values as indices.
    Index,
}

impl BufferAccess {
    /// Returns the access to a buffer of kernel IR.
    pub fn from_kind(kind: &BufferKind) -> BufferAccess {
        match kind {
            BufferKind::Read => BufferAccess::Read,
            BufferKind::Write => BufferAccess::Write,
            BufferKind::ReadWrite => BufferAccess::ReadWrite,
            BufferKind::Scratch => BufferAccess::Scratch,
            BufferKind::Index { .. } => BufferAccess::Index,
        }
    }

    /// Returns whether the kernel may write the buffer.
    pub fn is_written(self) -> bool {
        match self {
            BufferAccess::Write | BufferAccess::ReadWrite | BufferAccess::Scratch => true,
            BufferAccess::Read | BufferAccess::Index => false,
        }
    }
}

/// Type of a buffer's elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Elements(String);

impl Elements {
    /// Returns the name of a type of kernel IR.
    pub fn from_elem(elem: Option<Elem>) -> Elements {
        Elements(elem.unwrap_or(Elem::I8).name().to_owned())
    }

    /// Returns the type; bytes if the name is unknown.
    pub fn elem(&self) -> Elem {
        Elem::ALL.into_iter().find(|elem| elem.name() == self.0).unwrap_or(Elem::I8)
    }
}
