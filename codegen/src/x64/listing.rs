//! Listings: the finished bytes, disassembled, with the IR statement that each instruction comes from.
//!
//! What is printed is decoded from the bytes, not from what the compiler meant to encode.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

use ixc_ir::kernel::print::statement_text;
use ixc_ir::kernel::{For, Kernel, Stmt};

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

/// The listing as text, with the IR statement of each instruction (the first line of a loop).
pub fn text(compiled: &Compiled, kernel: &Kernel) -> String {
    let statements = statements(kernel);
    let mut out = format!("; {} ({} bytes)\n", compiled.name, compiled.code_bytes);
    let mut last = None;
    for line in compiled.listing() {
        // Only the first of a run of instructions repeats the statement.
        let origin = line.origin.filter(|_| line.origin != last).and_then(|o| statements.get(o as usize));
        last = line.origin;
        let origin = origin.map(|o| format!("; {o}")).unwrap_or_default();
        out += format!("{:6x}  {:<44}{origin}", line.offset, line.text).trim_end();
        out.push('\n');
    }
    out
}

/// The first line of every statement of a kernel, in the order of its text: what origins count.
pub fn statements(kernel: &Kernel) -> Vec<String> {
    let mut statements = Vec::new();
    collect(kernel, &kernel.body, &mut statements);
    statements
}

fn collect(kernel: &Kernel, body: &[Stmt], out: &mut Vec<String>) {
    for stmt in body {
        match stmt {
            Stmt::For(inner) => {
                // The head of the loop, without printing its body for every loop around it.
                let head = Stmt::For(For { body: Vec::new(), ..inner.clone() });
                out.push(first_line(&statement_text(kernel, &head)));
                collect(kernel, &inner.body, out);
            }
            Stmt::Inst(_) | Stmt::LoadIndex { .. } => out.push(first_line(&statement_text(kernel, stmt))),
        }
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}
