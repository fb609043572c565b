//! The registers.

/// A vector register, little-endian as in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Vector(pub [u8; 64]);

impl Vector {
    /// All zero.
    pub const ZERO: Vector = Vector([0; 64]);
}

/// Carry flag.
pub const CF: u64 = 1;
/// Parity flag of the low byte.
pub const PF: u64 = 1 << 2;
/// Adjust flag: carry out of the low four bits.
pub const AF: u64 = 1 << 4;
/// Zero flag.
pub const ZF: u64 = 1 << 6;
/// Sign flag.
pub const SF: u64 = 1 << 7;
/// Direction flag.
pub const DF: u64 = 1 << 10;
/// Overflow flag.
pub const OF: u64 = 1 << 11;

/// Number of the stack pointer.
pub const RSP: usize = 4;
/// Number of a general register that is always zero, so that an absent base or index needs no
/// branch.
pub const ALWAYS_ZERO: usize = 16;

/// The registers that kernels use.
#[derive(Clone)]
pub struct State {
    /// General registers, in the processor's order: rax, rcx, rdx, rbx, rsp, rbp. rsi, rdi and r8
    /// to r15 follow. The last entry is [`ALWAYS_ZERO`].
    pub gpr: [u64; 17],
    /// The flags, as the constants above.
    pub flags: u64,
    /// zmm0 to zmm31.
    pub vector: [Vector; 32],
    /// k0 to k7.
    pub mask: [u64; 8],
    /// Tile configuration and tiles.
    pub tiles: crate::amx::Tiles,
    /// Whether one of the first 16 vector registers was written beyond its low half since
    /// `vzeroupper`.
    pub dirty_upper: bool,
}

impl Default for State {
    fn default() -> State {
        State {
            gpr: [0; 17],
            flags: 0,
            vector: [Vector::ZERO; 32],
            mask: [0; 8],
            tiles: crate::amx::Tiles::default(),
            dirty_upper: false,
        }
    }
}
