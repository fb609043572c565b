//! Origin of each instruction: the statement of the kernel's IR. Listings, profiles and reports use
//! it to show the IR line of an instruction.

/// Origin of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Offset of the instruction in the code.
    pub offset: u32,
    /// Number of the IR statement, in the order of the kernel's text; `None` for frame setup.
    pub origin: Option<u32>,
}
