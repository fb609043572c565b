//! Registers of the emulated processor.

/// A vector register. Its bytes are little-endian, as in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Vector(pub [u8; 64]);

impl Vector {
    /// A register whose bytes are all zero.
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

/// Number of the stack pointer among the general registers.
pub const RSP: usize = 4;
/// Index in [`State::gpr`] of an additional register that is always zero. It stands for an absent
/// base or index, so that address computation needs no branch.
pub const ALWAYS_ZERO: usize = 16;

/// Registers that kernels use.
#[derive(Clone)]
pub struct State {
    /// General registers, in the processor's order: rax, rcx, rdx, rbx, rsp, rbp, rsi and rdi. r8
    /// to r15 follow, and then [`ALWAYS_ZERO`].
    pub gpr: [u64; 17],
    /// Flags, at the bits of the constants above.
    pub flags: u64,
    /// Vector registers zmm0 to zmm31.
    pub vector: [Vector; 32],
    /// Mask registers k0 to k7.
    pub mask: [u64; 8],
    /// Tile registers and their configuration.
    pub tiles: crate::amx::Tiles,
    /// Whether one of the first 16 vector registers was written beyond its low half, after the last
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
