//! Search for the markers of a state in a text that arrives in pieces.

use aho_corasick::{AhoCorasick, MatchKind};

use super::format::{Format, Move, State};

/// Markers that are recognised in one state.
#[derive(Clone, Debug)]
pub struct Markers {
    /// Automaton that searches for the markers; `None` for a state without markers.
    automaton: Option<AhoCorasick>,
    moves: Vec<Move>,
}

impl Markers {
    /// Returns the markers of a format in one state. With `is_first`, this includes markers that
    /// count only at the beginning of the content.
    pub fn new(format: &Format, state: State, is_first: bool) -> Markers {
        Markers::from_format(format, |step| step.from.contains(&state) && (is_first || !step.only_first))
    }

    /// Returns the markers of a state, except those that lead to calls.
    pub fn without_calls(format: &Format, state: State) -> Markers {
        Markers::from_format(format, |step| step.from.contains(&state) && !step.only_first && !leads_to_call(step))
    }

    fn from_format(format: &Format, is_there: impl Fn(&Move) -> bool) -> Markers {
        let moves: Vec<Move> = format.moves.iter().copied().filter(is_there).collect();
        let automaton = (!moves.is_empty()).then(|| {
            let builder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).clone();
            builder.build(moves.iter().map(|step| step.marker)).expect("markers are a few short constants")
        });
        Markers { automaton, moves }
    }

    /// Returns the first marker in the text, and its position.
    pub fn find(&self, text: &str) -> Option<(usize, Move)> {
        let found = self.automaton.as_ref()?.find(text)?;
        Some((found.start(), self.moves[found.pattern().as_usize()]))
    }

    /// Returns the position at which the text ends with the beginning of a marker. Without such an
    /// end, returns the length of the text.
    pub fn incomplete_marker(&self, text: &str) -> usize {
        let longest = self.moves.iter().map(|step| step.marker.len()).max().unwrap_or(0);
        let from = text.len().saturating_sub(longest.saturating_sub(1));
        let begins =
            |at: &usize| text.get(*at..).is_some_and(|end| self.moves.iter().any(|step| step.marker.starts_with(end)));
        (from..text.len()).find(begins).unwrap_or(text.len())
    }

    /// Returns whether a text is the beginning of a marker that leads to a call.
    pub fn begins_call(&self, text: &str) -> bool {
        !text.is_empty() && self.moves.iter().any(|step| leads_to_call(step) && step.marker.starts_with(text))
    }
}

fn leads_to_call(step: &Move) -> bool {
    matches!(step.to, State::Call | State::Section)
}
