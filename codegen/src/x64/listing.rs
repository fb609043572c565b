//! Listings: the finished bytes, disassembled, with the IR statement that each instruction comes from.
//!
//! What is printed is decoded from the bytes, not from what the compiler meant to encode.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

use super::Compiled;

/// One instruction of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Offset in the code; branch targets and constants are offsets too.
    pub offset: u32,
    /// The instruction in Intel's syntax.
    pub text: String,
    /// The IR statement that it comes from, counted in the order of the kernel's text.
    pub origin: Option<u32>,
}

impl Compiled {
    /// Disassembles the kernel.
    pub fn listing(&self) -> Vec<Listed> {
        let mut decoder = Decoder::with_ip(64, &self.code[..self.code_bytes], 0, DecoderOptions::NONE);
        let mut formatter = IntelFormatter::new();
        formatter.options_mut().set_branch_leading_zeros(false);
        formatter.options_mut().set_space_after_operand_separator(true);
        formatter.options_mut().set_rip_relative_addresses(false);
        let mut lines = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            let mut text = String::new();
            formatter.format(&decoder.decode(), &mut text);
            lines.push(Listed { offset: line.offset, text, origin: line.origin });
        }
        lines
    }
}

/// The listing as text: `offset  instruction ; statement`.
pub fn text(compiled: &Compiled) -> String {
    let mut out = format!("; {} ({} bytes)\n", compiled.name, compiled.code_bytes);
    for line in compiled.listing() {
        let origin = line.origin.map(|o| format!("; {o}")).unwrap_or_default();
        out += format!("{:6x}  {:<60}{origin}", line.offset, line.text).trim_end();
        out.push('\n');
    }
    out
}
