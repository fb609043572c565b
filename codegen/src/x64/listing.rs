//! Listings: finished code, disassembled, with the IR statement from which each instruction comes.
//!
//! The text is decoded from the bytes, not from the compiler's machine IR. GNU as and llvm-mca
//! accept it unchanged: jump targets and constants have labels, the constants are listed after the
//! code, and comments start with `#`.
//!
//! ```text
//! .intel_syntax noprefix
//! k:
//!         mov rax, qword ptr [rdi]                            #      0
//! .L18:
//!         vaddps ymm0, ymm1, ymmword ptr [rip + .Lc40]        #     18  %b = add f32x8 %a, %two
//!         ...
//!         .balign 64, 0xcc
//! .Lc40:
//!         .long 0x40000000, 0x40000000, 0x40000000, 0x40000000
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;

use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter, MemorySize, MemorySizeOptions,
    OpKind, SymbolResolver, SymbolResult,
};

use ixc_ir::kernel::print::statement_text;
use ixc_ir::kernel::{For, Kernel, Stmt};

use super::CompiledKernel;
use crate::line::Line;

/// Finished code of any lowering, the input of a listing.
#[derive(Clone, Copy, Debug)]
pub struct FinishedCode<'c> {
    /// The kernel's name.
    pub name: &'c str,
    /// Bytes of the instructions, without the constants.
    pub code: &'c [u8],
    /// Constants, which follow the instructions.
    pub constants: &'c [u8],
    /// Offset of the constants.
    pub constants_at: usize,
    /// Origin of each instruction.
    pub lines: &'c [Line],
}

impl<'c> From<&'c CompiledKernel> for FinishedCode<'c> {
    fn from(compiled: &'c CompiledKernel) -> FinishedCode<'c> {
        let CompiledKernel { name, code, code_bytes, constants, lines, .. } = compiled;
        FinishedCode { name, code: &code[..*code_bytes], constants, constants_at: code.len(), lines }
    }
}

/// One instruction of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedInstruction {
    /// Offset in the code; branch targets and constants are offsets too.
    pub offset: u32,
    /// The instruction in Intel's syntax.
    pub text: String,
    /// The IR statement of the instruction, counted in the order of the kernel's text.
    pub origin: Option<u32>,
}

/// Column in which comments begin.
const COMMENT: usize = 60;

/// Labels of jump targets and constants.
struct Labels {
    code_bytes: u64,
    /// Prefix of each label, which makes the labels of several kernels in one text unique.
    prefix: String,
}

impl Labels {
    /// Returns the label of an offset.
    fn name(&self, offset: u64) -> String {
        let constant = if offset < self.code_bytes { "" } else { "c" };
        format!(".L{}{constant}{offset:x}", self.prefix)
    }

    /// Returns the offset of the constant or the branch target of an instruction, if it has one.
    fn constant_offset(i: &Instruction) -> Option<u64> {
        if i.is_ip_rel_memory_operand() {
            return Some(i.ip_rel_memory_address());
        }
        (i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64).then(|| i.near_branch64())
    }
}

impl SymbolResolver for Labels {
    fn symbol(
        &mut self,
        i: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        (Labels::constant_offset(i) == Some(address)).then(|| SymbolResult::with_string(address, self.name(address)))
    }
}

impl CompiledKernel {
    /// Disassembles the kernel.
    pub fn listing(&self) -> Vec<ListedInstruction> {
        FinishedCode::from(self).listing()
    }
}

impl FinishedCode<'_> {
    /// Disassembles the kernel.
    pub fn listing(&self) -> Vec<ListedInstruction> {
        self.listing_with("")
    }

    fn listing_with(&self, prefix: &str) -> Vec<ListedInstruction> {
        let prefix = prefix.to_owned();
        let labels = Labels { code_bytes: self.code.len() as u64, prefix };
        let mut formatter = IntelFormatter::with_options(Some(Box::new(labels)), None);
        let options = formatter.options_mut();
        options.set_space_after_operand_separator(true);
        options.set_space_between_memory_add_operators(true);
        options.set_rip_relative_addresses(false);
        options.set_show_branch_size(false);
        options.set_memory_size_options(MemorySizeOptions::Always);
        options.set_hex_prefix("0x");
        options.set_hex_suffix("");
        let mut lines = Vec::with_capacity(self.lines.len());
        for (line, i) in self.lines.iter().zip(self.instructions()) {
            let mut text = String::new();
            formatter.format(&i, &mut text);
            if i.is_ip_rel_memory_operand() {
                // Without `rip`, assemblers would use the label's address as a 32-bit displacement.
                text = text.replacen("[.L", "[rip + .L", 1);
            }
            if i.cpuid_features()
                .iter()
                .any(|feature| [CpuidFeature::AVX_VNNI, CpuidFeature::AVX_IFMA].contains(feature))
            {
                // Without the prefix `{vex}`, assemblers choose the older AVX-512 form.
                text.insert_str(0, "{vex} ");
            }
            if i.memory_size() == MemorySize::Tilecfg {
                // Assemblers have no name for the size of this operand, and GNU as rejects
                // `zmmword ptr`.
                text = text.replacen("zmmword ptr ", "", 1);
            }
            lines.push(ListedInstruction { offset: line.offset, text, origin: line.origin });
        }
        lines
    }

    fn instructions(&self) -> impl Iterator<Item = Instruction> {
        Decoder::with_ip(64, self.code, 0, DecoderOptions::NONE).into_iter()
    }

    /// Returns the constants after the code as directives, each with its label.
    fn constants_text(&self, named: &BTreeSet<u64>, labels: &Labels) -> String {
        let start = self.constants_at as u64;
        let end = start + self.constants.len() as u64;
        if self.constants.is_empty() {
            return String::new();
        }
        let mut out = String::from("        .balign 64, 0xcc\n");
        // Keeps the original alignment of the constant.
        if !start.is_multiple_of(64) {
            let _ = writeln!(out, "        .skip {}, 0xcc", start % 64);
        }
        let mut starts: Vec<u64> = named.range(start..end).copied().collect();
        if starts.first() != Some(&start) {
            starts.insert(0, start);
        }
        for (n, &from) in starts.iter().enumerate() {
            let to = starts.get(n + 1).copied().unwrap_or(end);
            let _ = writeln!(out, "{}:", labels.name(from));
            for line in self.constants[(from - start) as usize..(to - start) as usize].chunks(16) {
                let (dwords, bytes) = line.as_chunks::<4>();
                let dwords: Vec<String> = dwords.iter().map(|d| format!("{:#010x}", u32::from_le_bytes(*d))).collect();
                let bytes: Vec<String> = bytes.iter().map(|b| format!("{b:#04x}")).collect();
                for (directive, values) in [(".long", dwords), (".byte", bytes)] {
                    if !values.is_empty() {
                        let _ = writeln!(out, "        {directive} {}", values.join(", "));
                    }
                }
            }
        }
        out
    }
}

/// Returns the listing as text, with the IR statement of each instruction. A loop is shown by its
/// first line.
pub fn text<'c>(code: impl Into<FinishedCode<'c>>, kernel: &Kernel) -> String {
    part(&code.into(), kernel, "")
}

/// Returns the listing of one of several kernels in one text. Its labels begin with the kernel's
/// number.
pub fn text_of_many<'c>(code: impl Into<FinishedCode<'c>>, kernel: &Kernel, number: usize) -> String {
    part(&code.into(), kernel, &format!("{number}_"))
}

fn part(compiled: &FinishedCode<'_>, kernel: &Kernel, prefix: &str) -> String {
    let statements = statements(kernel);
    let bytes = compiled.code.len();
    let labels = Labels { code_bytes: bytes as u64, prefix: prefix.to_owned() };
    let named: BTreeSet<u64> = compiled.instructions().filter_map(|i| Labels::constant_offset(&i)).collect();
    let mut out = format!("# {} ({bytes} bytes)\n.intel_syntax noprefix\n{}:\n", compiled.name, compiled.name);
    let mut last = None;
    for line in compiled.listing_with(prefix) {
        if named.contains(&u64::from(line.offset)) {
            let _ = writeln!(out, "{}:", labels.name(line.offset.into()));
        }
        // For consecutive instructions of one statement, only the first shows the statement.
        let origin = line.origin.filter(|_| line.origin != last).and_then(|o| statements.get(o as usize));
        last = line.origin;
        let origin = origin.map(|o| format!("  {o}")).unwrap_or_default();
        let _ = writeln!(out, "{:<COMMENT$}#{:7x}{origin}", format!("        {}", line.text), line.offset);
    }
    out += &compiled.constants_text(&named, &labels);
    out
}

/// Returns the first line of every statement of a kernel, in the order of its text.
/// [`Line::origin`] is an index into this list.
pub fn statements(kernel: &Kernel) -> Vec<String> {
    let mut statements = Vec::new();
    collect(kernel, &kernel.body, &mut statements);
    statements
}

fn collect(kernel: &Kernel, body: &[Stmt], out: &mut Vec<String>) {
    for stmt in body {
        match stmt {
            Stmt::For(inner) => {
                // Only the head of the loop is printed. Printing the body once for every
                // surrounding loop would take too long.
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
