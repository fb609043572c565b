//! What comes of reading a text that may end too early.

/// What a text is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// This, and nothing else.
    Whole(T),
    /// The beginning of something.
    Unfinished,
    /// No such thing.
    Wrong,
}

impl<T> Reading<T> {
    /// What is made of a whole one.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        self.and_then(|value| Reading::Whole(f(value)))
    }

    /// What is read further in a whole one.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Reading::Whole(value) => f(value),
            Reading::Unfinished => Reading::Unfinished,
            Reading::Wrong => Reading::Wrong,
        }
    }
}
