//! Run-time sizes of kernels (dims): expressions over inputs of a work item.
//!
//! ```text
//! rows % 8 / 4                                     groups of four rows after the groups of eight
//! min((first + 1) / 32, part_end) - part_begin     blocks that each row of the item sees whole
//! div_ceil((position + 1) / 4, 32)                 blocks of entries, each of four positions
//! ```
//!
//! A kernel builds its dims from [`DimInput`]s, constants and operators. The runtime and the
//! simulator provide the values of the inputs and call [`DimExpr::evaluate`]. Plan checks provide
//! the ranges of the inputs and call [`DimExpr::range`].
//!
//! Numbers are `u64`. A difference below 0 becomes 0. A sum or product beyond 64 bits is an error,
//! and so is a division by 0.
//!
//! Invariant: if `range` succeeds for ranges of the inputs, `evaluate` succeeds for all values in
//! these ranges, and its result is in the returned range. Invariant: a deserialised expression has
//! at most [`MAX_OPS`] operations and needs at most [`MAX_DEPTH`] values at once.

mod text;

use std::ops::RangeInclusive;

use ixc_failure::Class;
use serde::{Deserialize, Serialize};

/// Maximum number of operations of an expression. Each constant or input also counts as one.
pub const MAX_OPS: usize = 128;
/// Maximum number of values on the stack during evaluation.
pub const MAX_DEPTH: usize = 16;

/// A row of the table of inputs ([`DimInput::ROWS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DimInputRow {
    /// Input that this row describes.
    pub input: DimInput,
    /// Name in the text form.
    pub name: &'static str,
    /// Unit that the input counts.
    pub unit: &'static str,
    /// Description of the input for readers.
    pub doc: &'static str,
    /// Whether the input depends on positions of the item's rows. If so, the rows are tokens.
    pub of_positions: bool,
    /// Largest value that the input has in any plan.
    pub max: u64,
}

macro_rules! dim_inputs {
    ($($variant:ident $name:literal $unit:literal $of_positions:literal $max:ident $doc:literal;)*) => {
        /// An input of dims: a property of a work item.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DimInput {
            $(#[doc = $doc] $variant,)*
        }

        impl DimInput {
            /// The table of inputs.
            pub const ROWS: &[DimInputRow] = &[$(DimInputRow {
                input: DimInput::$variant,
                name: $name,
                unit: $unit,
                doc: $doc,
                of_positions: $of_positions,
                max: $max,
            },)*];
        }
    };
}

/// Maximum of inputs that are counts or positions, which have 32 bits.
const WORD: u64 = u32::MAX as u64;
/// Maximum of inputs that are block numbers: the first block of the last part plus the blocks of
/// one part.
const BLOCK: u64 = 1 << 34;

dim_inputs! {
    Rows "rows" "rows" false WORD "Rows of the item.";
    Band "band" "bands" false WORD "Number of the item's band in its column.";
    Tokens "tokens" "rows" false WORD "Tokens of the step.";
    Outputs "outputs" "rows" false WORD "Rows of the step whose outputs are requested.";
    Capacity "capacity" "places" false WORD "Places that the memory of the item's state has room for.";
    First "first" "places" true WORD "Last place that the item's first row sees: its own position where attention is causal.";
    Last "last" "places" true WORD "Last place that the item's last row sees.";
    WindowBegin "window_begin" "places" true WORD "First place that the item's last row sees; 0 without a window.";
    Position "position" "positions" true WORD "Position of the item's last row in its text.";
    TextEnd "text_end" "positions" true WORD "Position of the last row that the step has of the item's text.";
    PartBegin "part_begin" "blocks of 32 places" true BLOCK "First block of the item's part.";
    PartEnd "part_end" "blocks of 32 places" true BLOCK "Block after the last one of the item's part; it may lie after the text's end.";
    Skipped "skipped" "blocks of 32 places" true BLOCK "Blocks of the text that the item skips because they lie before its window; 0 in parts.";
    Parts "parts" "parts" true WORD "Parts of the places that the item's row sees.";
}

impl DimInput {
    /// Returns the input's row of the table.
    pub fn row(self) -> &'static DimInputRow {
        // The table's rows are in the order of the variants.
        &DimInput::ROWS[self as usize]
    }

    /// Returns the range of the input's values in any plan.
    pub fn bounds(self) -> RangeInclusive<u64> {
        0..=self.row().max
    }
}

/// An operator with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operator {
    Add,
    /// Difference, or 0 if it would be negative.
    Sub,
    Mul,
    Div,
    DivCeil,
    Rem,
    Min,
    Max,
}

/// A step of evaluation. It pushes an operand on the stack, or replaces the top two values by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Op {
    Input(DimInput),
    Constant(u32),
    Binary(Operator),
}

/// A run-time size of a kernel as a function of a work item's inputs, in postfix order.
///
/// ```
/// use ixc_ir::plan::{DimExpr, DimInput};
///
/// let groups = DimInput::Rows % 8 / 4;
/// assert_eq!(groups.to_string(), "rows % 8 / 4");
/// assert_eq!("rows % 8 / 4".parse(), Ok(groups.clone()));
/// assert_eq!(groups.evaluate(|_| 22), Ok(1));
/// assert_eq!(groups.range(|_| 0..=100), Ok(0..=1));
/// let error = (DimInput::Rows / (DimInput::Band - 1)).range(DimInput::bounds).unwrap_err();
/// assert_eq!(error.to_string(), "`rows / (band - 1)` divides by 0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DimExpr(Vec<Op>);

/// Reason why a text is not an expression, or why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimError {
    /// Text that does not parse.
    #[error("expected {expected} at byte {at} of a dim")]
    Text {
        /// Byte offset of the problem in the text.
        at: usize,
        /// Description of the expected token.
        expected: &'static str,
    },
    /// An expression with more than [`MAX_OPS`] operations.
    #[error("a dim has more than {MAX_OPS} operations and operands")]
    Size,
    /// An expression that needs more than [`MAX_DEPTH`] values at once.
    #[error("a dim needs more than {MAX_DEPTH} values at once")]
    Depth,
    /// A division by 0, or the remainder of one.
    #[error("`{part}` divides by 0")]
    Zero {
        /// Text of the quotient or remainder.
        part: String,
    },
    /// A sum or product beyond 64 bits.
    #[error("`{part}` exceeds 64 bits")]
    Overflow {
        /// Text of the sum or product.
        part: String,
    },
}

impl DimError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        Class::Data
    }
}

/// Reason why an operation has no result.
enum Fault {
    Zero,
    Overflow,
}

/// Value of an operand: a number, or a range of numbers.
trait Value: Copy {
    fn constant(value: u32) -> Self;
    fn apply(operator: Operator, a: Self, b: Self) -> Result<Self, Fault>;
}

impl Value for u64 {
    fn constant(value: u32) -> u64 {
        value.into()
    }

    fn apply(operator: Operator, a: u64, b: u64) -> Result<u64, Fault> {
        match operator {
            Operator::Add => a.checked_add(b).ok_or(Fault::Overflow),
            Operator::Sub => Ok(a.saturating_sub(b)),
            Operator::Mul => a.checked_mul(b).ok_or(Fault::Overflow),
            Operator::Div => a.checked_div(b).ok_or(Fault::Zero),
            Operator::DivCeil if b == 0 => Err(Fault::Zero),
            Operator::DivCeil => Ok(a.div_ceil(b)),
            Operator::Rem => a.checked_rem(b).ok_or(Fault::Zero),
            Operator::Min => Ok(a.min(b)),
            Operator::Max => Ok(a.max(b)),
        }
    }
}

/// Range of all numbers from `lo` to `hi`, both included.
#[derive(Clone, Copy)]
struct Interval {
    lo: u64,
    hi: u64,
}

impl Value for Interval {
    fn constant(value: u32) -> Interval {
        Interval { lo: value.into(), hi: value.into() }
    }

    fn apply(operator: Operator, a: Interval, b: Interval) -> Result<Interval, Fault> {
        let of = |lo: (u64, u64), hi: (u64, u64)| {
            Ok(Interval { lo: u64::apply(operator, lo.0, lo.1)?, hi: u64::apply(operator, hi.0, hi.1)? })
        };
        match operator {
            // The results increase with both operands.
            Operator::Add | Operator::Mul | Operator::Min | Operator::Max => of((a.lo, b.lo), (a.hi, b.hi)),
            // The results increase with the first operand and decrease with the second.
            Operator::Sub | Operator::Div | Operator::DivCeil => of((a.lo, b.hi), (a.hi, b.lo)),
            Operator::Rem if b.lo == 0 => Err(Fault::Zero),
            Operator::Rem if a.hi < b.lo => Ok(a),
            Operator::Rem => Ok(Interval { lo: 0, hi: a.hi.min(b.hi - 1) }),
        }
    }
}

impl DimExpr {
    /// Computes the value of the expression. `input` returns the value of each input.
    ///
    /// # Errors
    /// Fails with [`DimError::Zero`], [`DimError::Overflow`], or [`DimError::Depth`] if the
    /// expression exceeds [`MAX_DEPTH`].
    pub fn evaluate(&self, input: impl FnMut(DimInput) -> u64) -> Result<u64, DimError> {
        self.fold(0, input)
    }

    /// Computes a range that contains the expression's value for all inputs in their ranges.
    ///
    /// # Errors
    /// Fails like [`DimExpr::evaluate`] if the expression has no value for some inputs in these
    /// ranges.
    pub fn range(
        &self,
        mut input: impl FnMut(DimInput) -> RangeInclusive<u64>,
    ) -> Result<RangeInclusive<u64>, DimError> {
        let interval = |range: RangeInclusive<u64>| Interval { lo: *range.start(), hi: *range.end() };
        let Interval { lo, hi } = self.fold(Interval { lo: 0, hi: 0 }, |of| interval(input(of)))?;
        Ok(lo..=hi)
    }

    /// Evaluates the expression on a stack of fixed size.
    #[inline]
    fn fold<V: Value>(&self, zero: V, mut input: impl FnMut(DimInput) -> V) -> Result<V, DimError> {
        let mut stack = [zero; MAX_DEPTH];
        let mut depth = 0;
        for (at, op) in self.0.iter().enumerate() {
            let value = match *op {
                Op::Input(of) => input(of),
                Op::Constant(value) => V::constant(value),
                Op::Binary(operator) => {
                    let [.., a, b] = stack[..depth] else { return Err(DimError::Depth) };
                    depth -= 2;
                    V::apply(operator, a, b).map_err(|fault| self.operation_error(at, &fault))?
                }
            };
            *stack.get_mut(depth).ok_or(DimError::Depth)? = value;
            depth += 1;
        }
        Ok(stack[0])
    }

    /// Returns the error for operation `at`, which failed with `fault`.
    #[cold]
    fn operation_error(&self, at: usize, fault: &Fault) -> DimError {
        let part = DimExpr(self.0[self.start(at)..=at].to_vec()).to_string();
        match fault {
            Fault::Zero => DimError::Zero { part },
            Fault::Overflow => DimError::Overflow { part },
        }
    }

    /// Returns the index of the first operation of the subexpression that ends with operation `at`.
    fn start(&self, at: usize) -> usize {
        let (mut missing, mut start) = (1usize, at + 1);
        while missing > 0 && start > 0 {
            start -= 1;
            match self.0[start] {
                Op::Input(_) | Op::Constant(_) => missing -= 1,
                Op::Binary(_) => missing += 1,
            }
        }
        start
    }

    /// Returns the inputs of the expression. An input that occurs several times is repeated.
    pub fn inputs(&self) -> impl Iterator<Item = DimInput> + '_ {
        self.0.iter().filter_map(|op| match op {
            Op::Input(input) => Some(*input),
            Op::Constant(_) | Op::Binary(_) => None,
        })
    }

    /// Whether the input occurs in the expression.
    pub fn uses(&self, input: DimInput) -> bool {
        self.inputs().any(|own| own == input)
    }

    /// Whether the expression depends on positions of the item's rows.
    pub fn uses_positions(&self) -> bool {
        self.inputs().any(|input| input.row().of_positions)
    }

    /// Whether the expression consists of only this input.
    pub fn is(&self, input: DimInput) -> bool {
        self.0 == [Op::Input(input)]
    }

    /// Returns the first constant divisor of this input in the expression, or `None`.
    ///
    /// ```
    /// use ixc_ir::plan::DimInput::{Band, Rows};
    ///
    /// assert_eq!((Rows / 8).divisor(Rows), Some(8));
    /// assert_eq!((Rows % 8 / 4).divisor(Rows), None);
    /// assert_eq!((Rows / 8).divisor(Band), None);
    /// ```
    pub fn divisor(&self, input: DimInput) -> Option<u32> {
        self.0.windows(3).find_map(|ops| match *ops {
            [Op::Input(own), Op::Constant(n), Op::Binary(Operator::Div | Operator::DivCeil)] if own == input => Some(n),
            _ => None,
        })
    }

    fn binary(mut self, operator: Operator, other: impl Into<DimExpr>) -> DimExpr {
        self.0.extend(other.into().0);
        self.0.push(Op::Binary(operator));
        self
    }

    /// Returns the quotient, rounded up.
    pub fn div_ceil(self, other: impl Into<DimExpr>) -> DimExpr {
        self.binary(Operator::DivCeil, other)
    }

    /// Returns the minimum of two expressions.
    pub fn min(self, other: impl Into<DimExpr>) -> DimExpr {
        self.binary(Operator::Min, other)
    }

    /// Returns the maximum of two expressions.
    pub fn max(self, other: impl Into<DimExpr>) -> DimExpr {
        self.binary(Operator::Max, other)
    }

    /// Checks a parsed or deserialised expression against [`MAX_OPS`] and [`MAX_DEPTH`].
    fn check_limits(self) -> Result<DimExpr, DimError> {
        if self.0.len() > MAX_OPS {
            return Err(DimError::Size);
        }
        let mut depth = 0usize;
        for op in &self.0 {
            match op {
                Op::Input(_) | Op::Constant(_) => depth += 1,
                Op::Binary(_) => depth -= 1,
            }
            if depth > MAX_DEPTH {
                return Err(DimError::Depth);
            }
        }
        Ok(self)
    }
}

impl From<DimInput> for DimExpr {
    fn from(input: DimInput) -> DimExpr {
        DimExpr(vec![Op::Input(input)])
    }
}

impl From<u32> for DimExpr {
    fn from(value: u32) -> DimExpr {
        DimExpr(vec![Op::Constant(value)])
    }
}

macro_rules! operators {
    ($($name:ident $method:ident;)*) => {$(
        impl<R: Into<DimExpr>> std::ops::$name<R> for DimExpr {
            type Output = DimExpr;

            fn $method(self, other: R) -> DimExpr {
                self.binary(Operator::$name, other)
            }
        }

        impl<R: Into<DimExpr>> std::ops::$name<R> for DimInput {
            type Output = DimExpr;

            fn $method(self, other: R) -> DimExpr {
                DimExpr::from(self).binary(Operator::$name, other)
            }
        }
    )*};
}

operators! { Add add; Sub sub; Mul mul; Div div; Rem rem; }

#[cfg(feature = "schema")]
impl schemars::JsonSchema for DimExpr {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DimExpr".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names: Vec<&str> = DimInput::ROWS.iter().map(|row| row.name).collect();
        let description = format!(
            "A run-time size of a kernel, such as `rows % 8 / 4`: numbers, `+`, `-` (at least 0), `*`, `/`, `%`, `min(a, b)`, `max(a, b)`, \
             `div_ceil(a, b)`, parentheses, and the inputs {}.",
            names.join(", ")
        );
        schemars::json_schema!({ "type": "string", "description": description })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dim_input_table_matches_the_enum() {
        for (number, row) in DimInput::ROWS.iter().enumerate() {
            assert_eq!(row.input as usize, number);
            assert_eq!(row.input.row(), row);
        }
    }

    #[test]
    fn dim_errors_name_the_failing_part() {
        let error = |text: &str, value| text.parse::<DimExpr>().unwrap().evaluate(|_| value).unwrap_err().to_string();
        assert_eq!(error("1 + rows / (rows - 7)", 7), "`rows / (rows - 7)` divides by 0");
        assert_eq!(error("div_ceil(1, rows) + 1", 0), "`div_ceil(1, rows)` divides by 0");
        assert_eq!(error("2 * (3 % rows)", 0), "`3 % rows` divides by 0");
        assert_eq!(error("min(rows, 2) + rows * 2", u64::MAX), "`rows * 2` exceeds 64 bits");
        assert_eq!(error("rows + 1", u64::MAX), "`rows + 1` exceeds 64 bits");
    }

    #[test]
    fn differences_stop_at_0() {
        let difference = DimInput::First - DimInput::Last;
        assert_eq!(difference.evaluate(|input| if input == DimInput::First { 3 } else { 5 }), Ok(0));
        assert_eq!(difference.range(|input| if input == DimInput::First { 3..=9 } else { 5..=6 }), Ok(0..=4));
    }

    #[test]
    fn deep_expressions_are_errors() {
        let mut deep = DimExpr::from(1);
        for _ in 0..MAX_DEPTH {
            deep = DimInput::Rows + deep;
        }
        assert_eq!(deep.evaluate(|_| 1), Err(DimError::Depth));
        assert_eq!(deep.range(|_| 1..=1), Err(DimError::Depth));
        assert_eq!(deep.to_string().parse::<DimExpr>(), Err(DimError::Depth));
    }

    fn expression() -> impl Strategy<Value = DimExpr> {
        let input = (0..DimInput::ROWS.len()).prop_map(|number| DimExpr::from(DimInput::ROWS[number].input));
        let leaf = prop_oneof![input, (0u32..40).prop_map(DimExpr::from), any::<u32>().prop_map(DimExpr::from)];
        leaf.prop_recursive(6, 64, 2, |inner| {
            let operator = prop::sample::select(vec![
                Operator::Add,
                Operator::Sub,
                Operator::Mul,
                Operator::Div,
                Operator::DivCeil,
                Operator::Rem,
                Operator::Min,
                Operator::Max,
            ]);
            (inner.clone(), operator, inner).prop_map(|(a, operator, b)| a.binary(operator, b))
        })
    }

    proptest! {
        #[test]
        fn text_reads_back(expression in expression()) {
            prop_assert_eq!(expression.to_string().parse(), Ok(expression));
        }

        #[test]
        fn values_lie_in_the_range(
            expression in expression(),
            ranges in prop::collection::vec((0u64..50, prop_oneof![0u64..4, 0u64..1 << 40]), DimInput::ROWS.len()),
            chosen in prop::collection::vec(any::<u64>(), DimInput::ROWS.len()),
        ) {
            let range = expression.range(|input| {
                let (lo, length) = ranges[input as usize];
                lo..=lo + length
            });
            let value = expression.evaluate(|input| {
                let (lo, length) = ranges[input as usize];
                lo + chosen[input as usize] % (length + 1)
            });
            if let Ok(range) = range {
                prop_assert!(range.contains(&value.clone().unwrap()), "{} is {:?}, not in {:?}", expression, value, range);
            }
        }
    }
}
