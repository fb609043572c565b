//! Tests of vocabularies of safetensors folders. Ids are compared with those of the `tokenizers`
//! crate for the same files.

use std::path::{Path, PathBuf};

use ixc_model_files::gguf::read_vocabulary;
use ixc_text::tokenizer::{DecodeOptions, Tokenizer};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

const FOLDERS: [&str; 2] = ["qwen3moe", "deepseek-fp8"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/checkpoints").join(name)
}

fn ours(name: &str) -> Tokenizer {
    let model = ixc_model_files::open(&folder(name)).unwrap();
    Tokenizer::new(&read_vocabulary(model.metadata()).unwrap()).unwrap()
}

fn theirs(name: &str) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_file(folder(name).join("tokenizer.json")).unwrap()
}

#[test]
fn ids_match_the_tokenizers_crate() {
    let texts = [
        "the borrow checker said that",
        "There, it's 1234567 o'clock: über naïve 日本語!",
        "  two  spaces\n\n\tand a tab \r\n end ",
        "the<|im_end|>the <think> borrow",
        "a",
        " ",
        "\u{1f600}\u{0301}",
    ];
    for name in FOLDERS {
        let (ours, theirs) = (ours(name), theirs(name));
        for text in texts {
            // Both tokenizers recognise special tokens in the text here.
            let right = theirs.encode(text, false).unwrap();
            assert_eq!(
                ours.encode(text, true).map(|ids| without_bos(name, ids)).unwrap(),
                right.get_ids(),
                "{name}: {text:?}"
            );
        }
    }
}

/// Removes BOS, which only our tokenizer adds for this folder.
fn without_bos(name: &str, ids: Vec<u32>) -> Vec<u32> {
    match (name, ids.split_first()) {
        ("deepseek-fp8", Some((1, rest))) => rest.to_vec(),
        _ => ids,
    }
}

#[test]
fn random_text_ids_match_the_tokenizers_crate() {
    // The seed is fixed, so that a failure can be repeated.
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(ProptestConfig { cases: 300, ..ProptestConfig::default() }, rng);
    let words =
        prop::sample::select(vec!["the", " borrow", "12", "é", "日", "\n", " ", "  ", "'s", "x", "_", "!", "there "]);
    let text = prop::collection::vec(words, 0..12).prop_map(|words| words.concat());
    let tokenizers = FOLDERS.map(|name| (name, ours(name), theirs(name)));
    let run = runner.run(&text, |text| {
        for (name, ours, theirs) in &tokenizers {
            let ids = without_bos(name, ours.encode(&text, false).unwrap());
            let right = theirs.encode(text.as_str(), false).unwrap();
            prop_assert_eq!(&ids[..], right.get_ids(), "{}: {:?}", name, text);
            let options = DecodeOptions { show_special: false, at_start: true };
            prop_assert_eq!(ours.decode_with(&ids, options).unwrap(), theirs.decode(&ids, true).unwrap());
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}
