//! Result of a case: the input was accepted or refused.

use std::fmt::Display;

use ixc_failure::Class;

/// Max bytes of an error's message. A name in a hostile file may be repeated in it.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Result of a case that broke no invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The input was accepted. The text describes the result, so that the runner recognises new
    /// kinds of results.
    Accepted(String),
    /// The input was refused with this message.
    Refused(String),
}

impl Outcome {
    /// Returns the outcome of an accepted input without a description.
    pub fn accepted() -> Outcome {
        Outcome::Accepted(String::new())
    }

    /// Returns the outcome of a refused input.
    ///
    /// # Panics
    /// If the message is empty or too long.
    pub fn refused(error: impl Display) -> Outcome {
        let message = error.to_string();
        assert!(!message.is_empty(), "an error has no message");
        assert!(message.len() <= MAX_MESSAGE_BYTES, "an error's message has {} bytes", message.len());
        Outcome::Refused(message)
    }

    /// Returns the outcome of a refused input, from an error with a class.
    ///
    /// # Panics
    /// If the class is the one for bugs.
    pub fn refused_as(error: impl Display, class: Class) -> Outcome {
        let outcome = Outcome::refused(error);
        assert!(class != Class::Failed, "a malformed input gives an error of the class {class:?}: {outcome:?}");
        outcome
    }

    /// Returns the kind of the outcome: its text without numbers and quoted names. An input with a
    /// new kind is worth further mutation.
    pub fn kind(&self) -> String {
        let (text, sign) = match self {
            Outcome::Accepted(text) => (text, '+'),
            Outcome::Refused(text) => (text, '-'),
        };
        let mut kind = String::from(sign);
        let mut is_quoted = false;
        // Lines with a bar show a part of the input, so they are removed.
        let lines = text.lines().filter(|line| !line.contains(" |"));
        for character in lines.flat_map(str::chars).take(400) {
            match character {
                '"' | '`' => is_quoted = !is_quoted,
                _ if is_quoted => {}
                '0'..='9' => {
                    if !kind.ends_with('0') {
                        kind.push('0');
                    }
                }
                other => kind.push(other),
            }
        }
        kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_do_not_make_new_kinds() {
        let kind = |text: &str| Outcome::refused(text).kind();
        assert_eq!(kind("byte 17: tensor \"a\" ends"), kind("byte 9: tensor \"b1\" ends"));
        assert_ne!(kind("byte 17"), kind("line 17"));
        assert_ne!(Outcome::Accepted("x".into()).kind(), kind("x"));
    }
}
