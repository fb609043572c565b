//! Which statement of a kernel's IR an instruction comes from: what listings, profiles and reports show lines of.

/// Where an instruction comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Offset of the instruction in the code.
    pub offset: u32,
    /// The IR statement, counted in the order of the kernel's text; none of what the frame needs.
    pub origin: Option<u32>,
}
