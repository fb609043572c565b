//! Printer of kernels as text, which [`super::parse`] reads back to the same kernel.
//!
//! Values are printed by number, and dims, buffers and variables by name. Finite floats are printed
//! as the shortest decimal that reads back to the same bits. Infinities and NaN are printed as
//! their bits.
//!
//! ```text
//! kernel sum_f32 where %n in 0..=1024 {
//!   buffer %x : read 32*%n + 4
//!   buffer %y : write 32
//!   %0 = splat f32x8 0.0
//!   %4 = for %i in 0..%n carry(%1 = %0) {
//!     %2 = load f32x8 %x[32*%i + 4]
//!     %3 = add f32x8 %1, %2
//!     yield %3
//!   }
//!   store f32x8 %y[0], %4
//! }
//! ```

use std::fmt::{Display, Formatter, Result, Write};

use super::verify::MAX_DEPTH;
use super::*;

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "kernel {}", self.name)?;
        for (i, dim) in self.dims.iter().enumerate() {
            let separator = if i == 0 { " where" } else { "," };
            write!(f, "{separator} %{} in {}..={}", dim.name, dim.lo, dim.hi)?;
        }
        f.write_str(" {\n")?;
        for buffer in &self.buffers {
            write!(f, "  buffer %{} : {}", buffer.name, buffer.kind.keyword())?;
            if let BufferKind::Index { below } = &buffer.kind {
                write!(f, "({})", AffineText(self, below))?;
            }
            writeln!(f, " {}", AffineText(self, &buffer.size))?;
        }
        block(self, f, &self.body, 1)?;
        f.write_str("}\n")
    }
}

/// Returns the text of one statement of a kernel. The text of a loop includes its body.
pub fn statement_text(kernel: &Kernel, statement: &Stmt) -> String {
    struct Text<'a>(&'a Kernel, &'a Stmt);
    impl Display for Text<'_> {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            block(self.0, f, std::slice::from_ref(self.1), 0)
        }
    }
    let mut text = Text(kernel, statement).to_string();
    text.truncate(text.trim_end().len());
    text
}

/// Returns the line of each statement in the text of its kernel, counted from 0. Statements are in
/// the text's order, loops before their bodies.
pub fn statement_lines(kernel: &Kernel) -> Vec<u32> {
    fn count(body: &[Stmt], next: &mut u32, lines: &mut Vec<u32>) {
        for statement in body {
            lines.push(*next);
            *next += 1;
            if let Stmt::For(inner) = statement {
                count(&inner.body, next, lines);
                // Skips the line of the loop's end, and the line of the `yield` before it.
                *next += 1 + u32::from(!inner.carries.is_empty());
            }
        }
    }
    // The first statement comes after the line with the kernel's name and one line for each buffer.
    let (mut next, mut lines) = (1 + u32::try_from(kernel.buffers.len()).unwrap_or(u32::MAX - 1), Vec::new());
    count(&kernel.body, &mut next, &mut lines);
    lines
}

fn block(kernel: &Kernel, f: &mut Formatter<'_>, statements: &[Stmt], depth: usize) -> Result {
    let indent = 2 * depth;
    if depth > MAX_DEPTH + 1 {
        return writeln!(f, "{:indent$}; deeper than any kernel that verifies", "");
    }
    for statement in statements {
        write!(f, "{:indent$}", "")?;
        match statement {
            Stmt::Inst(inst) => instruction(kernel, f, inst)?,
            Stmt::LoadIndex { var, address } => {
                writeln!(f, "%{} = load_index {}", var_name(kernel, *var), AddressText(kernel, address))?;
            }
            Stmt::For(inner) => {
                let lists = |f: &mut Formatter<'_>, what: fn(&Carry) -> ValueId| {
                    for (i, carry) in inner.carries.iter().enumerate() {
                        write!(f, "{}%{}", if i == 0 { "" } else { ", " }, what(carry).0)?;
                    }
                    Ok(())
                };
                if !inner.carries.is_empty() {
                    lists(f, |carry| carry.result)?;
                    f.write_str(" = ")?;
                }
                write!(f, "for %{} in 0..{}", var_name(kernel, inner.var), AffineText(kernel, &inner.trip))?;
                for (i, carry) in inner.carries.iter().enumerate() {
                    write!(f, "{}%{} = %{}", if i == 0 { " carry(" } else { ", " }, carry.inner.0, carry.init.0)?;
                }
                f.write_str(if inner.carries.is_empty() { " {\n" } else { ") {\n" })?;
                block(kernel, f, &inner.body, depth + 1)?;
                if !inner.carries.is_empty() {
                    write!(f, "{:indent$}  yield ", "")?;
                    lists(f, |carry| carry.next)?;
                    f.write_char('\n')?;
                }
                writeln!(f, "{:indent$}}}", "")?;
            }
        }
    }
    Ok(())
}

fn instruction(kernel: &Kernel, f: &mut Formatter<'_>, inst: &Inst) -> Result {
    if let Some(result) = inst.result {
        write!(f, "%{} = ", result.0)?;
    }
    write!(f, "{} {}", inst.op.row().mnemonic, inst.ty)?;
    // The address or affine expression, the operands and the immediate form one comma-separated
    // list.
    let mut separator = " ";
    if let Some(address) = &inst.address {
        write!(f, "{separator}{}", AddressText(kernel, address))?;
        separator = ", ";
    }
    if let Some(affine) = &inst.index {
        write!(f, "{separator}{}", AffineText(kernel, affine))?;
        separator = ", ";
    }
    for operand in &inst.operands {
        write!(f, "{separator}%{}", operand.0)?;
        separator = ", ";
    }
    match &inst.imm {
        Imm::None => {}
        Imm::Int(value) => write!(f, "{separator}{value}")?,
        Imm::Float(value) if value.is_finite() => write!(f, "{separator}{value:?}")?,
        Imm::Float(value) => write!(f, "{separator}{:#010x}", value.to_bits())?,
        Imm::Bytes(bytes) => write!(f, "{separator}{bytes:?}")?,
    }
    f.write_char('\n')
}

fn var_name(kernel: &Kernel, var: VarId) -> &str {
    kernel.vars.get(var.index()).map_or("undefined", String::as_str)
}

struct AddressText<'a>(&'a Kernel, &'a Address);

impl Display for AddressText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let buffer = self.0.buffers.get(self.1.buffer.index()).map_or("undefined", |buffer| &buffer.name);
        write!(f, "%{buffer}[{}]", AffineText(self.0, &self.1.offset))
    }
}

/// Text of an affine expression, with the names that a kernel gives to its atoms.
pub struct AffineText<'a>(
    /// Kernel that has the names.
    pub &'a Kernel,
    /// Expression to print.
    pub &'a Affine,
);

impl Display for AffineText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let AffineText(kernel, affine) = self;
        for (i, (atom, c)) in affine.terms.iter().enumerate() {
            let sign = match (i, *c < 0) {
                (0, false) => "",
                (0, true) => "-",
                (_, false) => " + ",
                (_, true) => " - ",
            };
            f.write_str(sign)?;
            if c.unsigned_abs() != 1 {
                write!(f, "{}*", c.unsigned_abs())?;
            }
            let name = match atom {
                Atom::Dim(dim) => kernel.dims.get(dim.index()).map_or("undefined", |dim| &dim.name),
                Atom::Var(var) => var_name(kernel, *var),
            };
            write!(f, "%{name}")?;
        }
        match (affine.terms.is_empty(), affine.constant) {
            (true, constant) => write!(f, "{constant}"),
            (false, 0) => Ok(()),
            (false, constant) => {
                write!(f, " {} {}", if constant < 0 { '-' } else { '+' }, constant.unsigned_abs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;

    #[test]
    fn statement_lines_match_the_printed_text() {
        let text = "kernel k where %n in 0..=8 {
  buffer %x : read 32*%n
  buffer %y : write 32
  %zero = splat i32x8 0
  for %j in 0..%n {
    %q = splat i32x8 1
  }
  %sum = for %i in 0..%n carry(%s = %zero) {
    %a = load i32x8 %x[32*%i]
    yield %a
  }
  store i32x8 %y[0], %sum
}
";
        let kernel = parse(text).unwrap();
        let text = kernel.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let words: Vec<bool> = ["splat i32x8 0", "for %j", "splat i32x8 1", "for %i", "load", "store"]
            .iter()
            .zip(statement_lines(&kernel))
            .map(|(word, line)| lines[line as usize].contains(word))
            .collect();
        assert_eq!((words, statement_lines(&kernel).len()), (vec![true; 6], 6), "{text}");
    }
}
