//! Layer numbers in the names of weights, states and tasks, and the structure of a task's label.
//!
//! ```text
//! blk.12.attn_q.weight              layer 12
//! linear blk.12.attn_q combine      op `linear`, of layer 12, names `blk.12.attn_q` and `combine`
//! ```
//!
//! In a word, a layer's number follows a dot, and ends at the next dot or at the end of the word.
//! If a word has several such numbers, the first one counts.

use std::ops::Range;

/// Maximum number of digits of a layer's number. A longer number is not a layer number.
const DIGITS: usize = 6;

/// Returns the layer's number in a word: its byte range and its value.
fn number(word: &str) -> Option<(Range<usize>, u32)> {
    word.match_indices('.').find_map(|(dot, _)| {
        let begin = dot + 1;
        let digits = word[begin..].bytes().take_while(u8::is_ascii_digit).count();
        let is_part = matches!(word.as_bytes().get(begin + digits), None | Some(b'.'));
        let number = word[begin..begin + digits].parse().ok()?;
        ((1..=DIGITS).contains(&digits) && is_part).then_some((begin..begin + digits, number))
    })
}

/// Returns the layer number in a name or a label, or `None` if it has none.
pub fn layer_of(text: &str) -> Option<u32> {
    text.split(' ').find_map(number).map(|(_, number)| number)
}

/// Replaces the layer's number in a name or a label by `mark`, so that the same names in all layers
/// become equal.
pub fn in_layer(text: &str, mark: &str) -> String {
    let word = |word: &str| match number(word) {
        Some((place, _)) => [&word[..place.start], mark, &word[place.end..]].concat(),
        None => word.to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// A task's label, split into the op and the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'l> {
    /// Mnemonic of the op.
    pub op: &'l str,
    /// Names after the mnemonic, separated by spaces. May be empty.
    pub rest: &'l str,
}

impl<'l> Label<'l> {
    /// Splits a label at its first space.
    pub fn parse(label: &'l str) -> Label<'l> {
        let (op, rest) = label.split_once(' ').unwrap_or((label, ""));
        Label { op, rest }
    }

    /// Returns the names in the label. The first is a weight's name without `.weight`, or a state's
    /// name.
    pub fn names(self) -> impl Iterator<Item = &'l str> {
        self.rest.split(' ').filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_numbers_are_parsed_from_names() {
        assert_eq!(
            ["blk.12.attn_q.weight", "kv.3", "token_embd.weight", "4.x", "rope.append kv.3 second", "blk.3"]
                .map(layer_of),
            [Some(12), Some(3), None, None, Some(3), Some(3)]
        );
        assert_eq!(layer_of("linear blk.12.attn_q"), Some(12));
        assert_eq!(layer_of("model.layers.3.mlp.experts.5.up"), Some(3));
        assert_eq!(["output.weight", "x.+1.y", "x.1234567", "x.12é", "x.", ".", ""].map(layer_of), [None; 7]);
        assert_eq!(in_layer("model.layers.3.mlp.experts.5.up", "#"), "model.layers.#.mlp.experts.5.up");
        assert_eq!(in_layer("linear blk.3.a blk.3.b", "*"), "linear blk.*.a blk.*.b");
        assert_eq!(in_layer("token_embd.weight", "#"), "token_embd.weight");
    }

    #[test]
    fn labels_split_into_op_and_names() {
        let label = Label::parse("expert.down blk.0.ffn_down_exps combine");
        assert_eq!((label.op, label.rest), ("expert.down", "blk.0.ffn_down_exps combine"));
        assert_eq!(label.names().collect::<Vec<_>>(), ["blk.0.ffn_down_exps", "combine"]);
        assert_eq!(Label::parse("quantise").names().count(), 0);
    }
}
