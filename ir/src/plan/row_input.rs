//! Numbers that the runtime computes for each row of a step from the row's position.
//!
//! ```text
//! positions among 4       position % 4
//! whole 4 positions       (position + 1) / 4
//! count of 16 chosen      min(position + 1, 16)
//! ```
//!
//! One table has the text form of each input, its formula, and the bound of its values. Other code
//! calls [`RowInput::value`], [`RowInput::below`] and [`RowInput::reach`], and matches on no
//! variant. A new input is therefore a new row of the table.
//!
//! Plan files contain the text form, so a new row keeps the encoding of plans.
//!
//! Invariant: a valid input of a position below `room` is less than [`RowInput::below`] of `room`.

use std::fmt;
use std::str::FromStr;

use ixc_failure::Class;
use serde::{Deserialize, Serialize};

use super::{KEY_LANES, PositionChoice};

/// Position of a row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPosition {
    /// Place of the row in the memory of the item's state. It is the position, unless the state has
    /// a window or places of several positions.
    pub place: u32,
    /// Position of the row in its text.
    pub position: u32,
    /// Position of the last row that the step has of the row's text.
    pub end: u32,
}

/// Number from which an input is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowBase {
    /// [`RowPosition::place`].
    Place,
    /// [`RowPosition::position`].
    Position,
    /// [`RowPosition::end`].
    End,
}

/// Text that names no row input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an input of rows, such as `positions among 4`")]
pub struct RowInputError;

impl RowInputError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        Class::Data
    }
}

/// Parameter of a row input.
trait Parameter: FromStr {
    fn is_valid(&self) -> bool;
}

impl Parameter for u32 {
    fn is_valid(&self) -> bool {
        *self > 0
    }
}

impl Parameter for PositionChoice {
    fn is_valid(&self) -> bool {
        PositionChoice::is_valid(*self)
    }
}

/// Returns the texts before and after the parameter of a text form.
fn parts(form: &'static str) -> (&'static str, &'static str) {
    form.split_once("{}").unwrap_or((form, ""))
}

/// Reads the parameter of a text form.
fn parameter<P: Parameter>(form: &'static str, text: &str) -> Option<P> {
    let (before, after) = parts(form);
    text.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

macro_rules! row_inputs {
    (@plain $variant:ident) => { Some(RowInput::$variant) };
    (@plain $variant:ident $parameter:ident) => { None };
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident $(($parameter:ident: $type:ty))? $form:literal: $base:ident
            value |$number:ident| $value:expr, below |$room:pat_param| $below:expr, reach $reach:expr;
    )+) => {
        /// Number that the runtime computes for each row of a step from the row's position.
        ///
        /// ```
        /// use ixc_ir::plan::{RowInput, RowPosition};
        ///
        /// let input: RowInput = "whole 4 positions".parse()?;
        /// assert_eq!(input.to_string(), "whole 4 positions");
        /// assert_eq!(input.value(RowPosition { place: 7, position: 7, end: 9 }), 2);
        /// assert_eq!(input.below(32), 9);
        /// # Ok::<(), ixc_ir::plan::RowInputError>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum RowInput {
            $($(#[doc = $doc])+ $variant $(($type))?,)+
        }

        impl RowInput {
            /// Text forms of all inputs, in the order of the table. `{}` stands for the parameter.
            pub const FORMS: &[&str] = &[$($form),+];

            /// Inputs without a parameter, `None` for others.
            const WITHOUT_PARAMETER: &[Option<RowInput>] = &[$(row_inputs!(@plain $variant $($parameter)?)),+];

            /// Readers of the inputs. A reader checks the text of a parameter alone.
            const READERS: &[fn(&str) -> Option<RowInput>] = &[$(|text| {
                let _ = text;
                Some(RowInput::$variant $((parameter::<$type>($form, text)?))?)
            }),+];

            /// Returns the number from which the input is computed.
            pub fn base(self) -> RowBase {
                match self {
                    $(RowInput::$variant { .. } => RowBase::$base,)+
                }
            }

            /// Whether the input has values: its parameter is at least 1, or a choice of whole runs
            /// or blocks.
            pub fn is_valid(self) -> bool {
                match self {
                    $(RowInput::$variant $(($parameter))? => true $(&& Parameter::is_valid(&$parameter))?,)+
                }
            }

            /// Returns the input's value for a row.
            pub fn value(self, row: RowPosition) -> u32 {
                let number = match self.base() {
                    RowBase::Place => row.place,
                    RowBase::Position => row.position,
                    RowBase::End => row.end,
                };
                match self {
                    $(RowInput::$variant $(($parameter))? => {
                        let $number = number;
                        $value
                    })+
                }
            }

            /// Returns a number above all values of positions, or of places, below `room`. `room`
            /// is a multiple of [`KEY_LANES`].
            pub fn below(self, room: u32) -> u64 {
                match self {
                    $(RowInput::$variant $(($parameter))? => {
                        let $room = u64::from(room);
                        $(let _ = $parameter;)?
                        $below
                    })+
                }
            }

            /// Returns the number of later positions that a row sees if attention takes the input.
            /// Rows see no position after the end of their text. Returns `None` for inputs of
            /// causal attention.
            pub fn reach(self) -> Option<u32> {
                match self {
                    $(RowInput::$variant $(($parameter))? => {
                        $(let _ = $parameter;)?
                        $reach
                    })+
                }
            }
        }

        impl fmt::Display for RowInput {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(RowInput::$variant $(($parameter))? => {
                        let (before, after) = parts($form);
                        f.write_str(before)?;
                        $(write!(f, "{}", $parameter)?;)?
                        f.write_str(after)
                    })+
                }
            }
        }
    };
}

// A row has the text form and the base. `value` computes the input from the base, and `below`
// bounds it. `reach` is the number of later positions that a row of attention sees.
row_inputs! {
    /// Place of each row, as data (i32): its position, counted in the memory of the item's state.
    Positions "positions": Place
        value |place| place, below |places| places, reach None;
    /// Position of the last row of each row's sequence in this step, as data (i32). A row of
    /// non-causal attention sees all positions up to it.
    Ends "last positions": End
        value |end| end, below |room| room, reach Some(u32::MAX);
    /// Position of each row plus this number, as data (i32). The sum may be beyond the end of the
    /// row's text.
    Ahead(reach: u32) "positions and {}": Position
        value |position| position.saturating_add(reach), below |room| room + u64::from(reach), reach Some(reach);
    /// Place / [`KEY_LANES`] of each row.
    PositionBlock "position blocks": Place
        value |place| place / KEY_LANES, below |places| places / u64::from(KEY_LANES), reach None;
    /// Place % [`KEY_LANES`] of each row.
    PositionLane "position lanes": Place
        value |place| place % KEY_LANES, below |_| u64::from(KEY_LANES), reach None;
    /// Position of each row modulo this number.
    Phase(every: u32) "positions among {}": Position
        value |position| position % every.max(1), below |_| u64::from(every), reach None;
    /// Number of complete groups of this many positions up to each row's own position, which
    /// counts, as data (i32).
    Whole(every: u32) "whole {} positions": Position
        value |position| position.saturating_add(1) / every.max(1),
        below |room| room / u64::from(every.max(1)) + 1, reach None;
    /// Number of places chosen for each row, as data (i32).
    Chosen(choice: PositionChoice) "count of {}": Position
        value |position| choice.count(position), below |_| choice.most().saturating_add(1), reach None;
    /// Number of the last chosen place of each row, as data (i32).
    LastChosen(choice: PositionChoice) "last of {}": Position
        value |position| choice.count(position).saturating_sub(1), below |_| choice.most(), reach None;
}

impl RowInput {
    /// Returns all inputs without a parameter.
    pub fn without_parameter() -> impl Iterator<Item = RowInput> {
        RowInput::WITHOUT_PARAMETER.iter().copied().flatten()
    }

    /// Returns the inputs of a row's place. They have no parameter.
    pub fn of_places() -> impl Iterator<Item = RowInput> {
        RowInput::without_parameter().filter(|input| input.base() == RowBase::Place)
    }
}

impl FromStr for RowInput {
    type Err = RowInputError;

    fn from_str(text: &str) -> Result<RowInput, RowInputError> {
        let mut inputs = RowInput::READERS.iter().filter_map(|read| read(text));
        inputs.find(|input| input.to_string() == text).ok_or(RowInputError)
    }
}

impl From<RowInput> for String {
    fn from(input: RowInput) -> String {
        input.to_string()
    }
}

impl TryFrom<String> for RowInput {
    type Error = RowInputError;

    fn try_from(text: String) -> Result<RowInput, RowInputError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ChoiceUnit;

    /// An input, its text, and its formula for place, position and end.
    struct Example {
        input: RowInput,
        text: &'static str,
        formula: fn(u32, u32, u32) -> u32,
    }

    /// Examples of all rows of the table, in its order.
    fn examples() -> Vec<Example> {
        let runs = PositionChoice { top_k: 16, every: 4, of: ChoiceUnit::Positions };
        let entries = PositionChoice { top_k: 16, every: 4, of: ChoiceUnit::Entries };
        let example = |input, text, formula| Example { input, text, formula };
        vec![
            example(RowInput::Positions, "positions", |place, _, _| place),
            example(RowInput::Ends, "last positions", |_, _, end| end),
            example(RowInput::Ahead(3), "positions and 3", |_, position, _| position + 3),
            example(RowInput::PositionBlock, "position blocks", |place, _, _| place / 16),
            example(RowInput::PositionLane, "position lanes", |place, _, _| place % 16),
            example(RowInput::Phase(4), "positions among 4", |_, position, _| position % 4),
            example(RowInput::Whole(4), "whole 4 positions", |_, position, _| (position + 1) / 4),
            example(RowInput::Chosen(entries), "count of 16 chosen entries of 4", |_, position, _| {
                ((position + 1) / 4).min(16)
            }),
            example(RowInput::LastChosen(runs), "last of 16 chosen in runs of 4", |_, position, _| {
                let seen = position + 1;
                (seen / 4).min(4) * 4 + seen % 4 - 1
            }),
        ]
    }

    #[test]
    fn each_row_of_the_table_prints_reads_and_computes() {
        let examples = examples();
        assert_eq!(examples.len(), RowInput::FORMS.len());
        for (Example { input, text, formula }, form) in examples.iter().zip(RowInput::FORMS) {
            let (before, after) = parts(form);
            assert!(text.starts_with(before) && text.ends_with(after), "{text} is not of {form}");
            assert_eq!(input.to_string(), *text);
            assert_eq!(text.parse(), Ok(*input));
            let bytes = postcard::to_allocvec(input).unwrap();
            assert_eq!(postcard::from_bytes(&bytes), Ok(*input), "{text}");
            assert!(input.is_valid(), "{text}");
            for position in 0..200 {
                let (place, end) = (position / 2, position + 7);
                let value = input.value(RowPosition { place, position, end });
                assert_eq!(value, formula(place, position, end), "{text} at {position}");
            }
        }
    }

    #[test]
    fn values_are_below_the_bound() {
        for Example { input, text, .. } in examples() {
            for room in [32, 64, 96, 4096] {
                let values = (0..room).map(|at| input.value(RowPosition { place: at, position: at, end: at }));
                let max = values.max().unwrap();
                assert!(u64::from(max) < input.below(room), "{text} reaches {max} of {}", input.below(room));
            }
        }
    }

    #[test]
    fn inputs_of_places_have_no_parameter() {
        let of_places = |example: &Example| example.input.base() == RowBase::Place;
        let all: Vec<RowInput> = examples().iter().filter(|of| of_places(of)).map(|example| example.input).collect();
        assert_eq!(RowInput::of_places().collect::<Vec<_>>(), all);
        assert_eq!(RowInput::without_parameter().count(), 4);
    }

    #[test]
    fn other_text_is_an_error() {
        for text in ["", "position", "positions and", "positions and +3", "positions among {}", "count of 4"] {
            assert_eq!(text.parse::<RowInput>(), Err(RowInputError), "{text}");
        }
        assert!(!RowInput::Phase(0).is_valid());
        let choice = |top_k, every, of| RowInput::Chosen(PositionChoice { top_k, every, of });
        for (top_k, every, of) in
            [(0, 1, ChoiceUnit::Positions), (4, 0, ChoiceUnit::Entries), (6, 4, ChoiceUnit::Blocks)]
        {
            assert!(!choice(top_k, every, of).is_valid(), "{top_k} of {every}");
        }
    }
}
