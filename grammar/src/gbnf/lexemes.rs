//! Choice of the parts of a grammar that become lexemes without changing the language.
//!
//! A part is regular if no rule in it is recursive. As a lexeme it always takes the longest match,
//! whereas the grammar may take a shorter one. Both match the same texts if these conditions hold:
//!
//! - no character that can follow the part also continues it, after any text that it matches; and
//! - no two lexemes that are possible at the same point have a common beginning, unless both are
//!   single characters. The lexer then never has to choose.
//!
//! The characters that can follow are computed as in parser generators (FOLLOW), without context.
//! The characters that continue a text come from the deterministic form of Glushkov's automaton
//! (1961). If one part does not meet the conditions, the whole grammar uses single characters. All
//! of these have the same length, so they meet the conditions.
//!
//! The analysis has bounded work and memory. A rule is written out wherever it is named, so a short
//! grammar may become very long. If the analysis would exceed its bounds, the grammar also uses
//! single characters. The length of the Lark is then at most a multiple of the source's length.

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

/// Max work on automata for one grammar. When it is exceeded, every character of a lexeme is
/// assumed to continue it.
const MAX_AUTOMATA_WORK: usize = 20_000_000;
/// Max other work on one grammar's long lexemes; it takes about 0.2 s. When it is exceeded, the
/// grammar has no long lexemes.
const MAX_WORK: usize = 20_000_000;
/// Work counted for a byte that stays in memory. It limits the memory to about ten MB.
const FORM_WORK: usize = 32;
const RANGE_WORK: usize = 8;
/// Max number of long lexemes, which are all compared with each other.
const MAX_LEXEMES: usize = 512;

/// Counter of work with a limit.
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

/// Form of a rule that consists of lexemes.
#[derive(Clone, Debug)]
enum RuleForm {
    /// A lexeme, given by its number.
    Lexeme(usize),
    Rule(usize),
    Token(String),
    Sequence(Vec<RuleForm>),
    Choice(Vec<RuleForm>),
    Repeat(Box<RuleForm>, u32, Option<u32>),
}

/// Regular expression of a lexeme, and its properties.
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
    /// Forms of the rules that the root reaches.
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
    /// `None` if this takes too much work.
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

    /// Returns the grammar as Lark, or `None` if the Lark is too long.
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

    /// Returns whether no lexeme matches too much and no lexeme hides another. Returns `None` if
    /// the check takes too much work.
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
        // Many lexemes are followed by the same set of lexemes, so each set is checked once.
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

/// Converter of rules to lexemes.
struct Builder<'r> {
    rules: &'r Rules,
    /// Regular rules and a work limit, if lexemes may be longer than one character.
    long: Option<(&'r Regular, &'r WorkLimit)>,
    numbers: HashMap<String, usize>,
    /// Limit on the work on automata.
    automata: WorkLimit,
}

impl Builder<'_> {
    /// Converts a part to its form. Adds new lexemes to `lexemes`, and the rules that the part
    /// names to `used`. Returns `None` if this takes too much work.
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
                // The rule can match the empty text. No lexeme can be empty, so the rule is written
                // out here.
                Node::Rule(number) if regular.texts[*number].is_some() => {
                    return self.rule_form(&self.rules.0[*number], lexemes, used);
                }
                // Zero or more repetitions can be empty, so they become one lexeme of at least one
                // repetition that is optional.
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

    /// Returns the number of the lexeme for one character.
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

    /// Adds a lexeme, unless one with this text exists. Returns its number.
    fn add(&mut self, lexeme: Lexeme, lexemes: &mut Vec<Lexeme>) -> Option<usize> {
        if let Some(number) = self.numbers.get(&lexeme.regex) {
            return Some(*number);
        }
        self.numbers.insert(lexeme.regex.clone(), lexemes.len());
        lexemes.push(lexeme);
        // The comparison of more lexemes would take too long.
        (self.long.is_none() || lexemes.len() <= MAX_LEXEMES).then_some(lexemes.len() - 1)
    }
}

/// Adds all characters of a regular part to `all`. Returns `None` if this takes too much work.
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

    /// Returns whether a grammar has few enough long lexemes to be checked.
    fn is_looked_at(gbnf: &str) -> bool {
        let (rules, work) = (read::rules(gbnf).unwrap(), WorkLimit::new(MAX_WORK));
        let regular = Regular::from_rules(&rules, &work);
        let found = Lexemes::build(&rules, Some((&regular, &work)));
        assert!(work.done.get() < MAX_WORK + (1 << 20), "no more is done behind the limit");
        found.is_some_and(|lexemes| lexemes.are_safe(&work).is_some())
    }

    /// Returns rules that each contain the previous rule twice. The last rule matches `text`,
    /// repeated `2^count` times.
    fn doubling_rules(text: &str, count: usize) -> String {
        let rules: String = (0..count).map(|i| format!("a{i} ::= a{0} a{0}\n", i + 1)).collect();
        format!("{rules}a{count} ::= {text}\n")
    }

    #[test]
    fn lexeme_expansion_of_short_grammars_is_limited() {
        assert!(is_looked_at("root ::= \"[\" (num | root)? \"]\"\nnum ::= [0-9]+"));
        // The grammar has 20,000 alternatives of 30,000 characters each.
        let alternatives: Vec<String> = (0..20_000).map(|i| format!("a0 \"{i}\"")).collect();
        let alternatives = format!("root ::= {}\n{}", alternatives.join(" | "), doubling_rules("\"x\"", 15));
        assert!(!is_looked_at(&alternatives));
        // The grammar has 80,000 parts. Each consists of 4096 parts that can be empty.
        let nothing = format!("root ::= {}\n{}", "a0 ".repeat(80_000), doubling_rules("\"x\"?", 12));
        assert!(!is_looked_at(&nothing));
        for gbnf in [alternatives, nothing] {
            let lark = lark(&read::rules(&gbnf).unwrap()).unwrap();
            assert!(lark.len() < 8 * gbnf.len(), "{} of {}", lark.len(), gbnf.len());
        }
    }

    #[test]
    fn automata_are_bounded() {
        // In this grammar, every position can follow every position.
        let all = format!("root ::= ({})+", "\"x\"? ".repeat(1000));
        let (rules, work) = (read::rules(&all).unwrap(), WorkLimit::new(100_000));
        assert!(Automaton::build(&rules.0[0], &rules, &work).is_none());
        assert!(work.done.get() < 100_000 + MAX_POSITIONS * MAX_POSITIONS + (1 << 20));
    }
}
