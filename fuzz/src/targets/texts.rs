//! Texts that are encoded with the tokenizers of accepted files.

use ixc_text::tokenizer::{DecodeOptions, Tokenizer};

/// Encodes and decodes texts with a tokenizer. Checks that all ids are in the vocabulary.
pub fn encode(tokenizer: &Tokenizer) {
    let long = "aab ".repeat(200);
    for text in ["", "a", "hello world 12,345.6\n\n\t<s>", "é 😀 \u{301}\u{0} ΑΒΓ 漢字", &long] {
        for parse_special in [false, true] {
            let Ok(ids) = tokenizer.encode(text, parse_special) else { continue };
            assert!(ids.iter().all(|id| (*id as usize) < tokenizer.token_count()), "{text:?} gives {ids:?}");
            let options = DecodeOptions { show_special: true, at_start: true };
            let whole = tokenizer.decode_with(&ids, options).expect("ids of the tokenizer");
            let mut stream = tokenizer.stream(options);
            let mut pieces: String = ids.iter().map(|id| stream.push(*id).expect("ids of the tokenizer")).collect();
            pieces += &stream.finish();
            assert_eq!(pieces, whole, "a stream decodes {ids:?} in another way");
        }
    }
}
