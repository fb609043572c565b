//! Numbers that the runtime computes for each row of a step from the row's position.
//!
//! ```text
//! positions among 4       position % 4
//! whole 4 positions       (position + 1) / 4
//! count of 16 chosen      min(position + 1, 16)
//! ```
//!
//! One table has each input's text form, formula and bound. Other code calls [`RowInput::value`],
//! [`RowInput::below`] and [`RowInput::reach`], and does not match on variants. A new input is
//! therefore just a new row of the table.
//!
//! Plan files contain the text form of inputs, so a new row of the table does not change the
//! encoding of plans.
//!
//! Invariant: the value of a valid input is less than `RowInput::below(room)` if all its positions
//! are below `room`.

use std::fmt;
use std::str::FromStr;

use ixc_failure::Class;
use serde::{Deserialize, Serialize};

use super::{KEY_LANES, PositionChoice};

/// Positions that belong to one row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPosition {
    /// Place of the row's entry in the memory of the item's state. It equals the position, unless
    /// the state has a window or entries of several positions.
    pub place: u32,
    /// Position of the row's token in its text.
    pub position: u32,
    /// Position of the last row of the same text in this step.
    pub end: u32,
}

/// Property of a row from which an input is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowBase {
    /// [`RowPosition::place`].
    Place,
    /// [`RowPosition::position`].
    Position,
    /// [`RowPosition::end`].
    End,
}

/// Error for a text that is not a row input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an input of rows, such as `positions among 4`")]
pub struct RowInputError;

impl RowInputError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        Class::Data
    }
}

/// Type of the parameter of a row input.
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

/// Returns the parts of a text form before and after its parameter.
fn parts(form: &'static str) -> (&'static str, &'static str) {
    form.split_once("{}").unwrap_or((form, ""))
}

/// Parses a text with the given form, and returns its parameter.
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
        /// An input for each row of a step: a number that the runtime computes from the row's
        /// position.
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

            /// The input of each row of the table, or `None` if it has a parameter.
            const WITHOUT_PARAMETER: &[Option<RowInput>] = &[$(row_inputs!(@plain $variant $($parameter)?)),+];

            /// Parser of each row of the table. It does not check whether the parameter is valid.
            const READERS: &[fn(&str) -> Option<RowInput>] = &[$(|text| {
                let _ = text;
                Some(RowInput::$variant $((parameter::<$type>($form, text)?))?)
            }),+];

            /// Returns the property of a row from which the input is computed.
            pub fn base(self) -> RowBase {
                match self {
                    $(RowInput::$variant { .. } => RowBase::$base,)+
                }
            }

            /// Whether the input's parameter is valid: a number of at least 1, or a valid choice.
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

            /// Returns an exclusive upper bound of the values, if positions and places are below
            /// `room`. `room` must be a multiple of [`KEY_LANES`].
            pub fn below(self, room: u32) -> u64 {
                match self {
                    $(RowInput::$variant $(($parameter))? => {
                        let $room = u64::from(room);
                        $(let _ = $parameter;)?
                        $below
                    })+
                }
            }

            /// Returns how many positions after its own a row sees if it is the input of attention.
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

// Each row of the table has the text form, the property that the input is computed from, its
// formula, and a bound of its values. The last entry is the number of later positions that a row of
// attention sees.
row_inputs! {
    /// Place of each row in the memory of the item's state, as data (i32).
    Positions "positions": Place
        value |place| place, below |places| places, reach None;
    /// Position of the last row of the same sequence in this step, as data (i32). In non-causal
    /// attention, a row sees all positions up to it.
    Ends "last positions": End
        value |end| end, below |room| room, reach Some(u32::MAX);
    /// Position of each row plus this number, as data (i32). The sum may be beyond the end of the
    /// row's text.
    Ahead(reach: u32) "positions and {}": Position
        value |position| position.saturating_add(reach), below |room| room + u64::from(reach), reach Some(reach);
    /// Place of each row / [`KEY_LANES`].
    PositionBlock "position blocks": Place
        value |place| place / KEY_LANES, below |places| places / u64::from(KEY_LANES), reach None;
    /// Place of each row % [`KEY_LANES`].
    PositionLane "position lanes": Place
        value |place| place % KEY_LANES, below |_| u64::from(KEY_LANES), reach None;
    /// Position of each row modulo this number.
    Phase(every: u32) "positions among {}": Position
        value |position| position % every.max(1), below |_| u64::from(every), reach None;
    /// Number of complete groups of this many positions, up to each row's own position and
    /// including it, as data (i32).
    Whole(every: u32) "whole {} positions": Position
        value |position| position.saturating_add(1) / every.max(1),
        below |room| room / u64::from(every.max(1)) + 1, reach None;
    /// Number of places that an index op chooses for each row, as data (i32).
    Chosen(choice: PositionChoice) "count of {}": Position
        value |position| choice.count(position), below |_| choice.most().saturating_add(1), reach None;
    /// Index of the last place that an index op chooses for each row, as data (i32).
    LastChosen(choice: PositionChoice) "last of {}": Position
        value |position| choice.count(position).saturating_sub(1), below |_| choice.most(), reach None;
}

impl RowInput {
    /// Returns all inputs without a parameter.
    pub fn without_parameter() -> impl Iterator<Item = RowInput> {
        RowInput::WITHOUT_PARAMETER.iter().copied().flatten()
    }

    /// Returns the inputs that are computed from a row's place. They have no parameter.
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

    /// A row input with its text, and with its formula as a function of place, position and end.
    struct Example {
        input: RowInput,
        text: &'static str,
        formula: fn(u32, u32, u32) -> u32,
    }

    /// Returns an example for each row of the table, in the table's order.
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
