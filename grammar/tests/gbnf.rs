//! Comparison of the texts that compiled GBNF grammars accept with those that GBNF defines.

use std::collections::BTreeSet;
use std::fmt::Write;

use ixc_grammar::{GrammarError, GrammarSource, Vocabulary, to_lark};
use ixc_ir::random::Random;

/// Part of a rule in a random grammar.
enum Part {
    Text(&'static str),
    /// A class of characters. The flag is set if the class has all other characters of the alphabet
    /// instead.
    Class(&'static str, bool),
    Rule(usize),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
}

/// Characters that occur in the texts.
const ALPHABET: &str = "ab[]é";

fn below(random: &mut Random, count: u64) -> usize {
    (random.bits() % count) as usize
}

/// Returns a random part. The part names a rule only after a character was read, so no rule is
/// left-recursive. `read` states whether the preceding parts read a character.
fn part(random: &mut Random, rules: usize, depth: u32, read: bool) -> Part {
    let kind = if depth == 0 { below(random, 2) } else { below(random, 6) };
    match kind {
        0 => Part::Text(["a", "b", "ab", "ba", "[", "]", "é", "aab"][below(random, 8)]),
        1 => {
            let (set, negated) =
                [("ab", false), ("[", true), ("aé", false), ("]b", true), ("b", false)][below(random, 5)];
            Part::Class(set, negated)
        }
        2 if read => Part::Rule(below(random, rules as u64)),
        2 | 3 => {
            let mut read = read;
            let part = |_| {
                let part = self::part(random, rules, depth - 1, read);
                read |= matches!(part, Part::Text(_) | Part::Class(..));
                part
            };
            Part::Sequence((0..3).map(part).collect())
        }
        4 => Part::Choice((0..2).map(|_| part(random, rules, depth - 1, read)).collect()),
        _ => {
            let (least, most) = [(0, None), (1, None), (0, Some(1)), (2, Some(3)), (0, Some(2))][below(random, 5)];
            Part::Repeat(Box::new(part(random, rules, depth - 1, read)), least, most)
        }
    }
}

/// Writes a part as GBNF.
fn write(part: &Part, text: &mut String) {
    let list = |parts: &[Part], between: &str, text: &mut String| {
        text.push('(');
        for (i, part) in parts.iter().enumerate() {
            text.push_str(if i > 0 { between } else { "" });
            write(part, text);
        }
        text.push(')');
    };
    match part {
        Part::Text(own) => write!(text, "{own:?}").unwrap(),
        Part::Class(set, negated) => {
            let set = set.replace(']', "\\]").replace('[', "\\[");
            write!(text, "[{}{set}]", if *negated { "^" } else { "" }).unwrap();
        }
        Part::Rule(0) => text.push_str("root"),
        Part::Rule(number) => write!(text, "rule-{number}").unwrap(),
        Part::Sequence(parts) => list(parts, " ", text),
        Part::Choice(parts) => list(parts, " | ", text),
        Part::Repeat(inner, least, most) => {
            write(inner, text);
            let most = most.map_or(String::new(), |most| most.to_string());
            write!(text, "{{{least},{most}}}").unwrap();
        }
    }
}

/// Returns the positions at which a part may end if it begins at `begin`.
fn ends(part: &Part, rules: &[Part], text: &[char], begin: usize, depth: u32) -> BTreeSet<usize> {
    let go = |part: &Part, from: &BTreeSet<usize>| -> BTreeSet<usize> {
        from.iter().flat_map(|&begin| ends(part, rules, text, begin, depth)).collect()
    };
    match part {
        Part::Text(own) => {
            let own: Vec<char> = own.chars().collect();
            if text[begin..].starts_with(&own) { BTreeSet::from([begin + own.len()]) } else { BTreeSet::new() }
        }
        Part::Class(set, negated) => {
            let found = text.get(begin).is_some_and(|c| set.contains(*c) != *negated);
            if found { BTreeSet::from([begin + 1]) } else { BTreeSet::new() }
        }
        // The depth limit exceeds the length of every text, so no match is missed.
        Part::Rule(_) if depth == 0 => BTreeSet::new(),
        Part::Rule(number) => ends(&rules[*number], rules, text, begin, depth - 1),
        Part::Sequence(parts) => parts.iter().fold(BTreeSet::from([begin]), |from, part| go(part, &from)),
        Part::Choice(parts) => parts.iter().flat_map(|part| ends(part, rules, text, begin, depth)).collect(),
        Part::Repeat(inner, least, most) => {
            let mut from = BTreeSet::from([begin]);
            for _ in 0..*least {
                from = go(inner, &from);
            }
            let mut all = from.clone();
            let mut left = most.map_or(text.len() as u32 + 1, |most| most - least);
            while left > 0 && !from.is_empty() {
                from = go(inner, &from);
                all.extend(&from);
                left -= 1;
            }
            all
        }
    }
}

/// Returns whether the grammar accepts a text as a whole.
fn follows(vocabulary: &Vocabulary, source: &GrammarSource, text: &str) -> Result<bool, GrammarError> {
    let mut matcher = vocabulary.matcher(source)?;
    for byte in text.bytes() {
        let allowed = matcher.token_mask()?;
        if matcher_has(allowed, byte.into()) {
            matcher.accept(byte.into())?;
        } else {
            return Ok(false);
        }
    }
    Ok(matcher.may_end())
}

fn matcher_has(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Returns a vocabulary with one token for each byte, and a token that ends an answer.
fn bytes() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=254).map(|byte| vec![byte]).collect();
    words.push(Vec::new());
    words.push(b"\xff<end>".to_vec());
    Vocabulary::of_words(words, vec![256]).unwrap()
}

#[test]
fn matcher_accepts_exactly_the_grammar_texts() {
    let vocabulary = bytes();
    let (mut yes, mut no, mut long) = (0, 0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let count = 1 + below(&mut random, 3);
        let rules: Vec<Part> = (0..count).map(|_| part(&mut random, count, 3, false)).collect();
        let mut gbnf = String::new();
        for (number, rule) in rules.iter().enumerate() {
            gbnf.push_str(&if number == 0 { "root ::= ".to_owned() } else { format!("rule-{number} ::= ") });
            write(rule, &mut gbnf);
            gbnf.push('\n');
        }
        let lark = match to_lark(&gbnf) {
            Err(GrammarError::Empty) => "none".to_owned(),
            lark => lark.unwrap(),
        };
        long += u32::from(lark.contains("/(?:"));
        let source = GrammarSource::Gbnf(gbnf.clone());
        for _ in 0..12 {
            let letters: Vec<char> = ALPHABET.chars().collect();
            let text: String = (0..below(&mut random, 8)).map(|_| letters[below(&mut random, 5)]).collect();
            let characters: Vec<char> = text.chars().collect();
            let expected = ends(&rules[0], &rules, &characters, 0, 20).contains(&characters.len());
            match follows(&vocabulary, &source, &text) {
                Ok(found) => assert_eq!(found, expected, "seed {seed}: {text:?}\n{gbnf}\n{lark}"),
                // The grammar matches no text, because its recursion never ends.
                Err(GrammarError::Empty) => assert!(!expected, "seed {seed}: {text:?}\n{gbnf}\n{lark}"),
                Err(GrammarError::AnswerMismatch { .. }) => assert!(!expected, "seed {seed}: {text:?}\n{gbnf}\n{lark}"),
                Err(error) => panic!("seed {seed}: {error}\n{gbnf}\n{lark}"),
            }
            (yes, no) = (yes + u32::from(expected), no + u32::from(!expected));
        }
    }
    assert!(yes > 200 && no > 1000 && long > 100, "{yes} texts are, {no} are not, {long} grammars have long lexemes");
}

#[test]
fn grammars_that_cost_much_are_refused_or_followed() {
    let vocabulary = bytes();
    let nested = |count: usize| format!("root ::= {}\"a\"{}", "(".repeat(count), ")".repeat(count));
    assert_eq!(follows(&vocabulary, &GrammarSource::Gbnf(nested(200)), "a"), Ok(true));
    assert!(matches!(vocabulary.matcher(&GrammarSource::Gbnf(nested(1000))), Err(GrammarError::TooDeep { .. })));
    let long = format!("root ::= \"{}\"", "a".repeat(ixc_grammar::MAX_BYTES));
    assert!(matches!(vocabulary.matcher(&GrammarSource::Gbnf(long)), Err(GrammarError::TooLong { .. })));
    // The chain has the max number of rules that name rules.
    let chain: String = (0..4000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    let chain = format!("root ::= r0\n{chain}r4000 ::= \"x\" root | \"y\"");
    // A slow machine may exceed the limit on the CPU time of compilation.
    assert!(matches!(
        follows(&vocabulary, &GrammarSource::Gbnf(chain), "xy"),
        Ok(true) | Err(GrammarError::CompileTime)
    ));
    // This is the same chain, but each rule can be empty. The thread's stack has 2 MiB, like those
    // of test threads.
    let chain: String = (0..4000).map(|i| format!("r{i} ::= r{}? \"\"\n", i + 1)).collect();
    let chain = format!("root ::= r0? \"\"\n{chain}r4000 ::= \"x\"?");
    assert!(to_lark(&chain).unwrap().len() < 200_000);
    // The grammar compiles, but at one point the number of possible parts exceeds the limit.
    let found = follows(&vocabulary, &GrammarSource::Gbnf(chain), "x");
    assert!(
        matches!(
            found,
            Ok(true) | Err(GrammarError::AnswerMismatch { .. } | GrammarError::CompileTime | GrammarError::TooLarge)
        ),
        "{found:?}"
    );
    let signs = format!("root ::= {}\"a\"{}", "(".repeat(200), ")????????".repeat(200));
    assert!(matches!(vocabulary.matcher(&GrammarSource::Gbnf(signs)), Err(GrammarError::TooDeep { .. })));
    // This is the same chain as Lark, first with the max number of rules and then with more.
    let lark = |count: usize| {
        let rules: String = (0..count).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
        GrammarSource::Lark(format!("start: r0\n{rules}r{count}: \"x\""))
    };
    let longest = vocabulary.matcher(&lark(16_000));
    assert!(
        matches!(
            longest,
            Ok(_) | Err(GrammarError::Compile { .. } | GrammarError::TooLarge | GrammarError::CompileTime)
        ),
        "{longest:?}"
    );
    assert!(matches!(vocabulary.matcher(&lark(17_000)), Err(GrammarError::TooLarge)));
    // Each rule names the previous rule twice, and the last rule is empty.
    let doubled: String = (0..60).map(|i| format!("r{i} ::= r{0} r{0}\n", i + 1)).collect();
    let doubled = format!("root ::= \"a\" r0\n{doubled}r60 ::= \"\"");
    assert!(matches!(
        follows(&vocabulary, &GrammarSource::Gbnf(doubled), "a"),
        Ok(true) | Err(GrammarError::Compile { .. } | GrammarError::TooLarge | GrammarError::CompileTime)
    ));
    let powers = "root ::= \"a\" (\"\"){1000}{1000}{1000}{1000}";
    assert!(matches!(
        follows(&vocabulary, &GrammarSource::Gbnf(powers.into()), "a"),
        Ok(true) | Err(GrammarError::Compile { .. } | GrammarError::TooLarge | GrammarError::CompileTime)
    ));
    let signs = format!("root ::= \"a\"{}", "*".repeat(100_000));
    assert!(matches!(vocabulary.matcher(&GrammarSource::Gbnf(signs)), Err(GrammarError::Gbnf { .. })));
}
