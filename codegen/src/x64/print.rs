//! Machine IR as text, after allocation: the input of the encoder.
//!
//! Each operand is a physical register, followed by the virtual register, so that a value can be
//! followed through copies and loops. Pseudo instructions are still present: for example, a `copy`
//! within one register will later disappear.
//!
//! ```text
//! b1:                                            ; depth 1, innermost; then b1 or b2
//!   vmovups       ymm3(v7), [rax(g2) + 32]       ; %5 = load f32x8 %x[64*%i + 32]
//!   fma           ymm0(v4), ymm3(v7), ymm2(v3), ymm0(v4)
//!   add           rax(v2), 64
//! ```

use std::fmt::Write;

use iced_x86::Register;
use ixc_ir::kernel::Kernel;

use super::allocate::Allocation;
use super::listing::statements;
use super::machine::{Base, Block, Function, Inst, Mem, Opcode, Operand, Vreg, Width};

/// Column of the IR statements.
const COMMENT: usize = 55;

/// Returns an allocated function as text. The first instruction of each statement shows the
/// statement.
pub fn text(kernel: &Kernel, f: &Function, allocation: &Allocation) -> String {
    let printer = Printer { f, registers: &allocation.registers };
    let statements = statements(kernel);
    let mut out = String::new();
    for (slot, bytes) in f.slots.iter().enumerate() {
        let _ = writeln!(out, "slot{slot}: {bytes} bytes");
    }
    let mut last = None;
    for id in &f.layout {
        let Some(block) = f.blocks.get(id.index()) else { continue };
        line(&mut out, &format!("b{}:", id.0), &block_comment(block));
        for inst in &block.insts {
            let origin = Some(inst.origin).filter(|_| last != Some(inst.origin));
            last = Some(inst.origin);
            let comment = origin.and_then(|origin| statements.get(origin as usize)).map_or("", String::as_str);
            line(&mut out, &format!("  {}", printer.inst(inst)), comment);
        }
    }
    out
}

fn line(out: &mut String, code: &str, comment: &str) {
    let _ = match comment {
        "" => writeln!(out, "{code}"),
        comment => writeln!(out, "{code:<COMMENT$} ; {comment}"),
    };
}

fn block_comment(block: &Block) -> String {
    let mut parts = Vec::new();
    if block.depth > 0 {
        parts.push(format!("depth {}{}", block.depth, if block.innermost { ", innermost" } else { "" }));
    }
    if !block.successors.is_empty() {
        let next: Vec<_> = block.successors.iter().map(|id| format!("b{}", id.0)).collect();
        parts.push(format!("then {}", next.join(" or ")));
    }
    parts.join("; ")
}

struct Printer<'f> {
    f: &'f Function,
    registers: &'f [u8],
}

impl Printer<'_> {
    fn inst(&self, inst: &Inst) -> String {
        let (name, constant) = match inst.opcode {
            Opcode::Code(code) => (format!("{:?}", code.mnemonic()).to_lowercase(), None),
            Opcode::Fma { scalar } => (if scalar { "fma.scalar" } else { "fma" }.into(), None),
            Opcode::Ternary(table) => (format!("ternary.{table:02x}"), None),
            Opcode::Constant(id) => ("constant".into(), Some(id)),
            Opcode::Copy => ("copy".into(), None),
        };
        let operands = inst.operands.iter().take_while(|operand| **operand != Operand::None);
        let mut operands: Vec<String> = operands.map(|operand| self.operand(operand)).collect();
        operands.extend(constant.map(|id| self.pool(id)));
        if let (Some((mask, zero)), Some(to)) = (inst.mask, operands.first_mut()) {
            let _ = write!(to, " {{{}}}{}", self.register(mask, Width::K), if zero { "{z}" } else { "" });
        }
        format!("{name:<13} {}", operands.join(", ")).trim_end().to_owned()
    }

    fn operand(&self, operand: &Operand) -> String {
        match *operand {
            Operand::None => String::new(),
            Operand::Reg(v, width, _) => self.register(v, width),
            Operand::Mem(mem) => self.memory(mem),
            Operand::Imm(value) => value.to_string(),
            Operand::Block(id) => format!("b{}", id.0),
        }
    }

    fn register(&self, v: Vreg, width: Width) -> String {
        let number = self.registers.get(v.index()).copied().unwrap_or(u8::MAX);
        let first = match width {
            Width::R16 => Register::AX,
            Width::R32 => Register::EAX,
            Width::R64 => Register::RAX,
            Width::X => Register::XMM0,
            Width::Y => Register::YMM0,
            Width::Z => Register::ZMM0,
            Width::K => Register::K0,
            Width::T => Register::TMM0,
        };
        // The registers of a register file have consecutive numbers; 255 marks a value that is
        // never used.
        match number {
            u8::MAX => format!("unused(v{})", v.0),
            number => format!("{:?}(v{})", first + u32::from(number), v.0).to_lowercase(),
        }
    }

    fn memory(&self, mem: Mem) -> String {
        let mut text = match mem.base {
            Base::Reg(v) => format!("[{}", self.register(v, Width::R64)),
            Base::Slot(slot) => format!("[slot{slot}"),
            Base::Pool(id) => return self.pool(id),
        };
        if let Some((index, scale)) = mem.index {
            let _ = write!(text, " + {}*{scale}", self.register(index, Width::R64));
        }
        let _ = match mem.disp {
            0 => Ok(()),
            disp if disp < 0 => write!(text, " - {}", disp.unsigned_abs()),
            disp => write!(text, " + {disp}"),
        };
        text + if mem.broadcast { "] to all lanes" } else { "]" }
    }

    /// Returns a constant as text: its period if it repeats, otherwise its first 8 bytes.
    fn pool(&self, id: u32) -> String {
        let bytes = self.f.pool.get(id as usize).map(Vec::as_slice).unwrap_or_default();
        let head: String = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let period =
            [1, 2, 4, 8].into_iter().find(|&n| bytes.len() >= n && bytes.chunks(n).all(|part| part == &bytes[..n]));
        match period {
            Some(n) => format!("{{{} x {}}}", &head[..2 * n], bytes.len() / n),
            None => format!("{{{head}.. of {} bytes}}", bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x64::lower;
    use ixc_targets::Target;

    #[test]
    fn allocated_code_names_registers_and_statements() {
        let kernel = ixc_ir::kernel::parse::parse(
            "kernel k where %n in 1..=9 {
  buffer %x : read 32*%n
  buffer %y : write 32*%n
  %two = splat f32x8 2.0
  for %i in 0..%n {
    %a = load f32x8 %x[32*%i]
    %b = fma f32x8 %a, %a, %two
    store f32x8 %y[32*%i], %b
  }
}",
        )
        .unwrap();
        let (function, allocation) = lower(&kernel, Target::AVX2).unwrap();
        let text = text(&kernel, &function, &allocation);
        println!("{text}");
        assert!(text.contains("{00000040 x 8}") && text.contains("; depth 1, innermost; then b"), "{text}");
        let load = text.lines().find(|line| line.contains("load f32x8 %x")).unwrap();
        assert!(load.contains("vmovups") && load.contains("ymm") && load.contains("; %"), "{load}");
        assert!(text.lines().any(|line| line.trim_start().starts_with("fma ")), "{text}");
        assert!(!text.contains("unused("), "{text}");
    }
}
