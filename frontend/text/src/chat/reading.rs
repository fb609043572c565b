//! Result of reading a text that may be incomplete.

/// Result of reading a value from a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// The text is exactly this value.
    Whole(T),
    /// The text is the beginning of a value.
    Unfinished,
    /// The text cannot become a value of the expected syntax.
    Wrong,
}

impl<T> Reading<T> {
    /// Applies a function to a whole value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        self.and_then(|value| Reading::Whole(f(value)))
    }

    /// Continues with the result of `f`, if the value is whole.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Reading::Whole(value) => f(value),
            Reading::Unfinished => Reading::Unfinished,
            Reading::Wrong => Reading::Wrong,
        }
    }
}
