//! Text form of dims, such as `min((first + 1) / 32, part_end) - part_begin`.
//!
//! `*`, `/` and `%` have a higher precedence than `+` and `-`. Operators of equal precedence are
//! applied from left to right.

use std::fmt;
use std::str::FromStr;

use super::{DimError, DimExpr, DimInput, MAX_OPS, Op, Operator};

/// Syntax of an operator.
enum Notation {
    /// Operator between its operands, with its precedence.
    Infix(char, u8),
    /// Function name before operands in parentheses.
    Call(&'static str),
}

/// Precedence of operands that never need parentheses.
const OPERAND: u8 = 3;

/// All operators with their syntax.
const OPERATORS: [(Operator, Notation); 8] = [
    (Operator::Add, Notation::Infix('+', 1)),
    (Operator::Sub, Notation::Infix('-', 1)),
    (Operator::Mul, Notation::Infix('*', 2)),
    (Operator::Div, Notation::Infix('/', 2)),
    (Operator::Rem, Notation::Infix('%', 2)),
    (Operator::DivCeil, Notation::Call("div_ceil")),
    (Operator::Min, Notation::Call("min")),
    (Operator::Max, Notation::Call("max")),
];

impl fmt::Display for DimExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut stack: Vec<OperandText> = Vec::new();
        for op in &self.0 {
            let text = match *op {
                Op::Input(input) => OperandText { text: input.row().name.to_owned(), precedence: OPERAND },
                Op::Constant(value) => OperandText { text: value.to_string(), precedence: OPERAND },
                Op::Binary(operator) => {
                    let (b, a) = (stack.pop().unwrap_or_default(), stack.pop().unwrap_or_default());
                    operation_text(operator, a, b)
                }
            };
            stack.push(text);
        }
        f.write_str(&stack.pop().unwrap_or_default().text)
    }
}

/// Text of an operand, and its precedence.
#[derive(Default)]
struct OperandText {
    text: String,
    /// Precedence of the operand's outermost operator, or [`OPERAND`].
    precedence: u8,
}

impl OperandText {
    /// Returns the text, in parentheses if its precedence is below `least`.
    fn parenthesised(self, least: u8) -> String {
        if self.precedence < least { format!("({})", self.text) } else { self.text }
    }
}

/// Returns the text of an operation on `a` and `b`.
fn operation_text(operator: Operator, a: OperandText, b: OperandText) -> OperandText {
    match OPERATORS.iter().find(|(own, _)| *own == operator) {
        Some((_, Notation::Infix(sign, precedence))) => OperandText {
            text: format!("{} {sign} {}", a.parenthesised(*precedence), b.parenthesised(precedence + 1)),
            precedence: *precedence,
        },
        Some((_, Notation::Call(name))) => {
            OperandText { text: format!("{name}({}, {})", a.text, b.text), precedence: OPERAND }
        }
        None => OperandText { text: String::new(), precedence: OPERAND },
    }
}

impl From<DimExpr> for String {
    fn from(expression: DimExpr) -> String {
        expression.to_string()
    }
}

impl TryFrom<String> for DimExpr {
    type Error = DimError;

    fn try_from(text: String) -> Result<DimExpr, DimError> {
        text.parse()
    }
}

impl FromStr for DimExpr {
    type Err = DimError;

    fn from_str(text: &str) -> Result<DimExpr, DimError> {
        let mut reader = Reader { text, at: 0, ops: Vec::new() };
        reader.infix(1, 0)?;
        reader.skip();
        if reader.at < text.len() {
            return reader.expected_error("an operator or the end");
        }
        DimExpr(reader.ops).check_limits()
    }
}

/// A parser of expressions, which appends operations in postfix order.
struct Reader<'t> {
    text: &'t str,
    at: usize,
    ops: Vec<Op>,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn skip(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn expected_error<T>(&self, expected: &'static str) -> Result<T, DimError> {
        Err(DimError::Text { at: self.at, expected })
    }

    fn push(&mut self, op: Op) -> Result<(), DimError> {
        self.ops.push(op);
        if self.ops.len() > MAX_OPS { Err(DimError::Size) } else { Ok(()) }
    }

    /// Skips the character `sign` if it is next, and returns true. Otherwise skips nothing and
    /// returns false.
    fn sign(&mut self, sign: char) -> bool {
        self.skip();
        let is_there = self.rest().starts_with(sign);
        self.at += if is_there { sign.len_utf8() } else { 0 };
        is_there
    }

    /// Parses operands and operators whose precedence is at least `least`.
    fn infix(&mut self, least: u8, nesting: usize) -> Result<(), DimError> {
        if least == OPERAND {
            return self.operand(nesting);
        }
        self.infix(least + 1, nesting)?;
        loop {
            let is_next = |of: &&(Operator, Notation), reader: &mut Self| match of.1 {
                Notation::Infix(sign, precedence) => precedence == least && reader.sign(sign),
                Notation::Call(_) => false,
            };
            let Some((operator, _)) = OPERATORS.iter().find(|of| is_next(of, self)) else { return Ok(()) };
            self.infix(least + 1, nesting)?;
            self.push(Op::Binary(*operator))?;
        }
    }

    fn operand(&mut self, nesting: usize) -> Result<(), DimError> {
        // In printed text, each pair of parentheses encloses an operation. The limit on operations
        // is thus also a limit on nesting.
        if nesting > MAX_OPS {
            return Err(DimError::Size);
        }
        if self.sign('(') {
            self.infix(1, nesting + 1)?;
            return if self.sign(')') { Ok(()) } else { self.expected_error("`)`") };
        }
        self.skip();
        let end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let word = self.rest().split(end).next().unwrap_or("").to_owned();
        let op = match DimInput::ROWS.iter().find(|row| row.name == word) {
            Some(row) => Some(Op::Input(row.input)),
            None if word.starts_with(|c: char| c.is_ascii_digit()) => word.parse().ok().map(Op::Constant),
            None => None,
        };
        if let Some(op) = op {
            self.at += word.len();
            return self.push(op);
        }
        let is_named = |form: &Notation| matches!(form, Notation::Call(name) if *name == word);
        let Some((operator, _)) = OPERATORS.iter().find(|(_, form)| is_named(form)) else {
            return self.expected_error("an input of an item, a number of 32 bits, `(`, `min`, `max` or `div_ceil`");
        };
        self.at += word.len();
        for (sign, expected) in [('(', "`(`"), (',', "`,`")] {
            if !self.sign(sign) {
                return self.expected_error(expected);
            }
            self.infix(1, nesting + 1)?;
        }
        if !self.sign(')') {
            return self.expected_error("`)`");
        }
        self.push(Op::Binary(*operator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_dims_have_only_necessary_parentheses() {
        for text in [
            "7",
            "rows",
            "rows % 8 / 4",
            "rows - (band - 1)",
            "rows - band - 1",
            "(rows + 1) * 2",
            "rows + 1 * 2",
            "rows / (band * 2)",
            "min(rows + 1, max(band, 4)) % 3",
            "div_ceil((position + 1) / 4, 32)",
        ] {
            assert_eq!(text.parse::<DimExpr>().unwrap().to_string(), text);
        }
        assert_eq!(" ( (rows) )/8 ".parse::<DimExpr>().unwrap().to_string(), "rows / 8");
    }

    #[test]
    fn invalid_dim_text_is_an_error_with_position() {
        let error = |text: &str| text.parse::<DimExpr>().unwrap_err().to_string();
        assert_eq!(
            error("rows +"),
            "expected an input of an item, a number of 32 bits, `(`, `min`, `max` or `div_ceil` at byte 6 of a dim"
        );
        assert_eq!(
            error("lines"),
            "expected an input of an item, a number of 32 bits, `(`, `min`, `max` or `div_ceil` at byte 0 of a dim"
        );
        assert_eq!(
            error("4294967296"),
            "expected an input of an item, a number of 32 bits, `(`, `min`, `max` or `div_ceil` at byte 0 of a dim"
        );
        assert_eq!(error("(rows"), "expected `)` at byte 5 of a dim");
        assert_eq!(error("min(rows)"), "expected `,` at byte 8 of a dim");
        assert_eq!(error("min rows"), "expected `(` at byte 4 of a dim");
        assert_eq!(error("rows rows"), "expected an operator or the end at byte 5 of a dim");
        assert_eq!(error("rows é"), "expected an operator or the end at byte 5 of a dim");
    }

    #[test]
    fn long_and_deep_text_is_an_error() {
        assert_eq!("1+".repeat(1 << 20).parse::<DimExpr>(), Err(DimError::Size));
        assert_eq!("(".repeat(1 << 20).parse::<DimExpr>(), Err(DimError::Size));
        assert_eq!("max(1,".repeat(1 << 20).parse::<DimExpr>(), Err(DimError::Size));
        assert!("1+(".repeat(20).parse::<DimExpr>().is_err());
    }
}
