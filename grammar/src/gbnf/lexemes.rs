//! Choice of the parts of a grammar that become lexemes without changing the language.
//!
//! A part is regular if no rule in it is recursive. As a lexeme it always takes the longest match,
//! but the grammar may take a shorter one. Both match the same texts if
//!
//! - no character that can follow the part continues it, after any text that it matches; and
//! - no two lexemes that are possible at the same point have a common beginning, unless both are
//!   single characters. The lexer then never has a choice.
//!
//! The characters that can follow are computed as in parser generators (FOLLOW), without context.
//! The characters that continue a text come from the deterministic form of Glushkov's automaton
//! (1961). If one part does not meet the conditions, the whole grammar uses single characters. No
//! two of these have different lengths.
//!
//! The analysis has bounded work and memory. A rule is written out wherever it is named, so a short
//! grammar may become very long. If the analysis would exceed its bounds, the grammar also uses
//! single characters. Its length is then at most a multiple of its source's length.

mod automaton;
mod follow;
mod regular;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Characters, Node, Rules};
use crate::GrammarError;
use crate::error::MAX_LARK_BYTES;
use automaton::Automaton;
use follow::Follow;
use regular::Regular;

/// Max work on automata for one grammar. When it is exceeded, every character of a lexeme counts as
/// a continuation.
const MAX_AUTOMATA_WORK: usize = 20_000_000;
/// Max other work for one grammar's long lexemes, about 0.2 s. When it is exceeded, the grammar has
/// no long lexemes.
const MAX_WORK: usize = 20_000_000;
/// Work counted for a byte that stays in memory, so that it takes at most about ten MB.
const FORM_WORK: usize = 32;
const RANGE_WORK: usize = 8;
/// Max number of lexemes that are compared with each other.
const MAX_LEXEMES: usize = 512;

/// Work done, and the max allowed.
#[derive(Debug)]
struct WorkLimit {
    done: Cell<usize>,
    max: usize,
}

impl WorkLimit {
    fn new(max: usize) -> WorkLimit {
        WorkLimit { done: Cell::new(0), max }
    }

    /// Counts work; returns `None` if it exceeds the limit.
    fn add(&self, count: usize) -> Option<()> {
        self.done.set(self.done.get().saturating_add(count));
        (self.done.get() <= self.max).then_some(())
    }
}

/// A rule in its written form.
#[derive(Clone, Debug)]
enum RuleForm {
    /// A lexeme, by its number.
    Lexeme(usize),
    Rule(usize),
    Token(String),
    Sequence(Vec<RuleForm>),
    Choice(Vec<RuleForm>),
    Repeat(Box<RuleForm>, u32, Option<u32>),
}

/// Properties of a lexeme.
#[derive(Clone, Debug)]
struct Lexeme {
    regex: String,
    first: Characters,
    continuations: Characters,
    is_single_char: bool,
}

/// A grammar whose rules consist of lexemes.
#[derive(Debug, Default)]
struct Lexemes {
    /// Rules that the root reaches.
    rule_forms: BTreeMap<usize, RuleForm>,
    lexemes: Vec<Lexeme>,
}

/// Returns rules as Lark, one per line. Their lexemes are as long as is safe.
///
/// # Errors
/// [`GrammarError::TooLarge`] if the Lark is too long even in single characters.
pub(super) fn lark(rules: &Rules) -> Result<String, GrammarError> {
    let long = || {
        let work = WorkLimit::new(MAX_WORK);
        let regular = Regular::from_rules(rules, &work);
        let lexemes = Lexemes::build(rules, Some((&regular, &work)))?;
        lexemes.are_safe(&work)?.then(|| lexemes.lark()).flatten()
    };
    let short = || Lexemes::build(rules, None)?.lark();
    long().or_else(short).ok_or(GrammarError::TooLarge)
}

impl Lexemes {
    /// Builds lexemes from regular rules, or from single characters if `long` is `None`. Returns
    /// `None` if it takes too much work.
    fn build(rules: &Rules, long: Option<(&Regular, &WorkLimit)>) -> Option<Lexemes> {
        let automata = WorkLimit::new(MAX_AUTOMATA_WORK);
        let (mut builder, mut result) =
            (Builder { rules, long, numbers: HashMap::new(), automata }, Lexemes::default());
        let (mut open, mut seen) = (vec![0], HashSet::from([0]));
        while let Some(number) = open.pop() {
            let mut used = Vec::new();
            let form = builder.rule_form(&rules.0[number], &mut result.lexemes, &mut used)?;
            result.rule_forms.insert(number, form);
            open.extend(used.into_iter().filter(|number| seen.insert(*number)));
        }
        Some(result)
    }

    /// Returns the grammar as Lark; `None` if it is too long.
    fn lark(&self) -> Option<String> {
        let mut text = String::new();
        for (number, form) in &self.rule_forms {
            text.push_str(&format!("r{number}: "));
            self.write(form, &mut text)?;
            text.push('\n');
        }
        Some(text)
    }

    fn write(&self, form: &RuleForm, text: &mut String) -> Option<()> {
        let all = |all: &[RuleForm], between: &str, text: &mut String| {
            text.push('(');
            for (i, form) in all.iter().enumerate() {
                text.push_str(if i > 0 { between } else { "" });
                self.write(form, text)?;
            }
            text.push(')');
            Some(())
        };
        match form {
            RuleForm::Lexeme(number) => {
                text.push('/');
                text.push_str(&self.lexemes[*number].regex);
                text.push('/');
            }
            RuleForm::Rule(number) => text.push_str(&format!("r{number}")),
            RuleForm::Token(name) => text.push_str(name),
            RuleForm::Sequence(parts) if parts.is_empty() => text.push_str("\"\""),
            RuleForm::Sequence(parts) => all(parts, " ", text)?,
            RuleForm::Choice(parts) => all(parts, " | ", text)?,
            RuleForm::Repeat(inner, min, max) => {
                text.push('(');
                self.write(inner, text)?;
                text.push(')');
                match (min, max) {
                    (0, None) => text.push('*'),
                    (1, None) => text.push('+'),
                    (0, Some(1)) => text.push('?'),
                    (min, None) => text.push_str(&format!("{{{min},}}")),
                    (min, Some(max)) => text.push_str(&format!("{{{min},{max}}}")),
                }
            }
        }
        (text.len() <= MAX_LARK_BYTES).then_some(())
    }

    /// Whether no lexeme matches too much, and none hides another. `None` if the check takes too
    /// much work.
    fn are_safe(&self, work: &WorkLimit) -> Option<bool> {
        if self.lexemes.iter().all(|lexeme| lexeme.is_single_char) {
            return Some(true);
        }
        let follow = Follow::new(self, work)?;
        let meet = |a: &Characters, b: &Characters| {
            work.add(a.0.len() + b.0.len())?;
            Some(a.intersects(b))
        };
        let together = follow.first.get(&0).map(|(first, _)| first).into_iter().chain(&follow.lexeme_follow);
        // Many lexemes are followed by the same set.
        let together: HashSet<&BTreeSet<usize>> = together.collect();
        for together in together {
            let all: Vec<&Lexeme> = together.iter().map(|number| &self.lexemes[*number]).collect();
            for (i, a) in all.iter().enumerate() {
                for b in all[i + 1..].iter().filter(|b| !(a.is_single_char && b.is_single_char)) {
                    if meet(&a.first, &b.first)? {
                        return Some(false);
                    }
                }
            }
        }
        for (lexeme, next) in self.lexemes.iter().zip(&follow.lexeme_follow) {
            for next in next {
                if meet(&lexeme.continuations, &self.lexemes[*next].first)? {
                    return Some(false);
                }
            }
        }
        Some(true)
    }
}

/// Converts rules to lexemes.
struct Builder<'r> {
    rules: &'r Rules,
    /// Regular rules and a work limit, if lexemes may be longer than a character.
    long: Option<(&'r Regular, &'r WorkLimit)>,
    numbers: HashMap<String, usize>,
    /// Work limit of automata.
    automata: WorkLimit,
}

impl Builder<'_> {
    /// Converts a part to lexemes, and adds new lexemes and the rules that it names. Returns `None`
    /// if it takes too much work.
    fn rule_form(&mut self, node: &Node, lexemes: &mut Vec<Lexeme>, used: &mut Vec<usize>) -> Option<RuleForm> {
        if let Node::Characters(set) = node {
            return Some(RuleForm::Lexeme(self.char_lexeme(set, lexemes)?));
        }
        if let Some((regular, work)) = self.long {
            work.add(FORM_WORK)?;
            let is_lexeme = !regular.is_recursive(node, work)? && !regular.is_nullable(node, work)?;
            if is_lexeme && let Some(text) = regular.text(node, work) {
                return Some(RuleForm::Lexeme(self.lexeme(node, text, lexemes, work)?));
            }
            match node {
                // The rule can match the empty text, but no lexeme can.
                Node::Rule(number) if regular.texts[*number].is_some() => {
                    return self.rule_form(&self.rules.0[*number], lexemes, used);
                }
                // One or more repetitions are a lexeme, even if zero or more are not.
                Node::Repeat(inner, 0, max) if !matches!(max, Some(0 | 1)) && !regular.is_nullable(inner, work)? => {
                    let once = Node::Repeat(inner.clone(), 1, *max);
                    return Some(match regular.is_recursive(inner, work)? {
                        true => RuleForm::Repeat(Box::new(self.rule_form(inner, lexemes, used)?), 0, *max),
                        false => RuleForm::Repeat(Box::new(self.rule_form(&once, lexemes, used)?), 0, Some(1)),
                    });
                }
                _ => {}
            }
        }
        let mut all =
            |parts: &[Node]| parts.iter().map(|part| self.rule_form(part, lexemes, used)).collect::<Option<_>>();
        Some(match node {
            Node::Rule(number) => {
                used.push(*number);
                RuleForm::Rule(*number)
            }
            Node::Token(name) => RuleForm::Token(name.clone()),
            // Characters are always a lexeme, handled above.
            Node::Characters(_) | Node::Repeat(_, _, Some(0)) => RuleForm::Sequence(Vec::new()),
            Node::Sequence(parts) => RuleForm::Sequence(all(parts)?),
            Node::Choice(parts) => RuleForm::Choice(all(parts)?),
            Node::Repeat(inner, min, max) => {
                RuleForm::Repeat(Box::new(self.rule_form(inner, lexemes, used)?), *min, *max)
            }
        })
    }

    /// Returns a lexeme of one character.
    fn char_lexeme(&mut self, set: &Characters, lexemes: &mut Vec<Lexeme>) -> Option<usize> {
        let lexeme = Lexeme {
            regex: set.regex(),
            first: set.clone(),
            continuations: Characters::default(),
            is_single_char: true,
        };
        self.add(lexeme, lexemes)
    }

    fn lexeme(&mut self, node: &Node, text: String, lexemes: &mut Vec<Lexeme>, work: &WorkLimit) -> Option<usize> {
        if let Some(number) = self.numbers.get(&text) {
            return Some(*number);
        }
        let anywhere = || {
            let mut all = Vec::new();
            ranges(node, self.rules, &mut all, work)?;
            Some(Characters::new(all))
        };
        let (first, continuations) = match Automaton::build(node, self.rules, &self.automata) {
            None => {
                let all = anywhere()?;
                (all.clone(), all)
            }
            Some(automaton) => {
                let continuations = automaton.continuations(&self.automata);
                (automaton.union(&automaton.first), continuations.map_or_else(anywhere, Some)?)
            }
        };
        work.add(RANGE_WORK * (first.0.len() + continuations.0.len()))?;
        self.add(Lexeme { regex: text, first, continuations, is_single_char: false }, lexemes)
    }

    /// Adds a lexeme, unless one with this text exists.
    fn add(&mut self, lexeme: Lexeme, lexemes: &mut Vec<Lexeme>) -> Option<usize> {
        if let Some(number) = self.numbers.get(&lexeme.regex) {
            return Some(*number);
        }
        self.numbers.insert(lexeme.regex.clone(), lexemes.len());
        lexemes.push(lexeme);
        // More lexemes are not compared with each other.
        (self.long.is_none() || lexemes.len() <= MAX_LEXEMES).then_some(lexemes.len() - 1)
    }
}

/// Adds all characters of a regular part; returns `None` if it takes too much work.
fn ranges(node: &Node, rules: &Rules, all: &mut Vec<(u32, u32)>, work: &WorkLimit) -> Option<()> {
    work.add(1)?;
    match node {
        Node::Characters(set) => {
            work.add(RANGE_WORK * set.0.len())?;
            all.extend_from_slice(&set.0);
            Some(())
        }
        Node::Rule(number) => ranges(&rules.0[*number], rules, all, work),
        Node::Token(_) => Some(()),
        Node::Sequence(parts) | Node::Choice(parts) => {
            parts.iter().try_for_each(|part| ranges(part, rules, all, work).ok_or(())).ok()
        }
        Node::Repeat(inner, ..) => ranges(inner, rules, all, work),
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::automaton::MAX_POSITIONS;
    use super::*;

    /// Whether the long lexemes of a grammar are few enough to be checked.
    fn is_looked_at(gbnf: &str) -> bool {
        let (rules, work) = (read::rules(gbnf).unwrap(), WorkLimit::new(MAX_WORK));
        let regular = Regular::from_rules(&rules, &work);
        let found = Lexemes::build(&rules, Some((&regular, &work)));
        assert!(work.done.get() < MAX_WORK + (1 << 20), "no more is done behind the limit");
        found.is_some_and(|lexemes| lexemes.are_safe(&work).is_some())
    }

    /// Returns rules in which each rule contains the previous one twice. The last rule is the text
    /// `2^count` times.
    fn doubling_rules(text: &str, count: usize) -> String {
        let rules: String = (0..count).map(|i| format!("a{i} ::= a{0} a{0}\n", i + 1)).collect();
        format!("{rules}a{count} ::= {text}\n")
    }

    #[test]
    fn lexeme_expansion_of_short_grammars_is_limited() {
        assert!(is_looked_at("root ::= \"[\" (num | root)? \"]\"\nnum ::= [0-9]+"));
        // Alternatives of 30,000 characters each.
        let alternatives: Vec<String> = (0..20_000).map(|i| format!("a0 \"{i}\"")).collect();
        let alternatives = format!("root ::= {}\n{}", alternatives.join(" | "), doubling_rules("\"x\"", 15));
        assert!(!is_looked_at(&alternatives));
        // Parts that can be empty, of 4096 each.
        let nothing = format!("root ::= {}\n{}", "a0 ".repeat(80_000), doubling_rules("\"x\"?", 12));
        assert!(!is_looked_at(&nothing));
        for gbnf in [alternatives, nothing] {
            let lark = lark(&read::rules(&gbnf).unwrap()).unwrap();
            assert!(lark.len() < 8 * gbnf.len(), "{} of {}", lark.len(), gbnf.len());
        }
    }

    #[test]
    fn automata_are_bounded() {
        // Every position is followed by every position.
        let all = format!("root ::= ({})+", "\"x\"? ".repeat(1000));
        let (rules, work) = (read::rules(&all).unwrap(), WorkLimit::new(100_000));
        assert!(Automaton::build(&rules.0[0], &rules, &work).is_none());
        assert!(work.done.get() < 100_000 + MAX_POSITIONS * MAX_POSITIONS + (1 << 20));
    }
}
