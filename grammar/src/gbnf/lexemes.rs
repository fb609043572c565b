//! Which parts of a grammar can be lexemes without changing what it takes.
//!
//! A part is regular where no rule in it comes back to itself. As a lexeme it is taken as long as it goes on, where the grammar might have taken less of
//! it. It would not have, where
//!
//! - no character that can follow it goes on in it, behind any text that it takes; and
//! - of lexemes that can stand in one place no two begin alike, unless both are single characters: so there is never another to be taken.
//!
//! What can follow is looked up as parsers' generators do (FOLLOW), without regard to what is around; what goes on behind a text, in the deterministic
//! automaton of Glushkov's (1961). Where one part fails, the whole grammar is of single characters, of which no two have different lengths.
//!
//! Finding that out costs a bounded amount of work and memory: rules are written out where they are named, so that a short grammar may stand for a long
//! one. Where it would cost more, the grammar is of single characters too, and what that is cannot be longer than a multiple of its source.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Characters, Node, Rules};
use crate::GrammarError;
use crate::error::{MAX_DEPTH, MAX_LARK_BYTES};

/// Longest regular expression of a lexeme, in bytes; rules in it are written out.
const MAX_LEXEME: usize = 1 << 18;
/// Most positions of a lexeme's automaton, and most of its states; one that has more is taken to go on with any of its characters.
const MAX_POSITIONS: usize = 1024;
const MAX_STATES: usize = 1024;
/// Most work on automata for one grammar; where there would be more, lexemes are taken to go on with any of their characters.
const MAX_AUTOMATA_WORK: usize = 20_000_000;
/// Most other work for one grammar's long lexemes, about 0.2 s; where there would be more, there are none.
const MAX_WORK: usize = 20_000_000;
/// What is made and stays counts as much work as it takes bytes, nearly: so there are some ten MB of it at most.
const FORM_WORK: usize = 32;
const RANGE_WORK: usize = 8;
const TEXT_WORK: usize = 2;
/// Most lexemes that are compared with each other.
const MAX_LEXEMES: usize = 512;

/// Work that was done, of what may be.
#[derive(Debug)]
struct Work {
    done: Cell<usize>,
    most: usize,
}

impl Work {
    fn of(most: usize) -> Work {
        Work { done: Cell::new(0), most }
    }

    /// Counts some; `None` where it is too much.
    fn add(&self, count: usize) -> Option<()> {
        self.done.set(self.done.get().saturating_add(count));
        (self.done.get() <= self.most).then_some(())
    }
}

/// A rule as it is written.
#[derive(Clone, Debug)]
enum Form {
    /// By its number.
    Lexeme(usize),
    Rule(usize),
    Token(String),
    Sequence(Vec<Form>),
    Choice(Vec<Form>),
    Repeat(Box<Form>, u32, Option<u32>),
}

/// What is known of a lexeme.
#[derive(Clone, Debug)]
struct Lexeme {
    regex: String,
    first: Characters,
    goes_on: Characters,
    single: bool,
}

/// A grammar in lexemes.
#[derive(Debug, Default)]
struct Lexemes {
    /// The rules that the root leads to.
    forms: BTreeMap<usize, Form>,
    lexemes: Vec<Lexeme>,
}

/// Rules as Lark, each on a line: in lexemes that are as long as is safe.
///
/// # Errors
/// [`GrammarError::TooLarge`] where it is too long even in single characters.
pub(super) fn lark(rules: &Rules) -> Result<String, GrammarError> {
    let long = || {
        let work = Work::of(MAX_WORK);
        let regular = Regular::of(rules, &work);
        let lexemes = Lexemes::of(rules, Some((&regular, &work)))?;
        lexemes.are_safe(&work)?.then(|| lexemes.lark()).flatten()
    };
    let short = || Lexemes::of(rules, None)?.lark();
    long().or_else(short).ok_or(GrammarError::TooLarge)
}

impl Lexemes {
    /// Of what rules are regular, or of single characters where that is not said; `None` where it would be too much work.
    fn of(rules: &Rules, long: Option<(&Regular, &Work)>) -> Option<Lexemes> {
        let automata = Work::of(MAX_AUTOMATA_WORK);
        let (mut builder, mut result) =
            (Builder { rules, long, numbers: HashMap::new(), automata }, Lexemes::default());
        let (mut open, mut seen) = (vec![0], HashSet::from([0]));
        while let Some(number) = open.pop() {
            let mut used = Vec::new();
            let form = builder.form(&rules.0[number], &mut result.lexemes, &mut used)?;
            result.forms.insert(number, form);
            open.extend(used.into_iter().filter(|number| seen.insert(*number)));
        }
        Some(result)
    }

    /// As Lark; `None` where it is too long.
    fn lark(&self) -> Option<String> {
        let mut text = String::new();
        for (number, form) in &self.forms {
            text.push_str(&format!("r{number}: "));
            self.write(form, &mut text)?;
            text.push('\n');
        }
        Some(text)
    }

    fn write(&self, form: &Form, text: &mut String) -> Option<()> {
        let all = |all: &[Form], between: &str, text: &mut String| {
            text.push('(');
            for (i, form) in all.iter().enumerate() {
                text.push_str(if i > 0 { between } else { "" });
                self.write(form, text)?;
            }
            text.push(')');
            Some(())
        };
        match form {
            Form::Lexeme(number) => {
                text.push('/');
                text.push_str(&self.lexemes[*number].regex);
                text.push('/');
            }
            Form::Rule(number) => text.push_str(&format!("r{number}")),
            Form::Token(name) => text.push_str(name),
            Form::Sequence(parts) if parts.is_empty() => text.push_str("\"\""),
            Form::Sequence(parts) => all(parts, " ", text)?,
            Form::Choice(parts) => all(parts, " | ", text)?,
            Form::Repeat(inner, least, most) => {
                text.push('(');
                self.write(inner, text)?;
                text.push(')');
                match (least, most) {
                    (0, None) => text.push('*'),
                    (1, None) => text.push('+'),
                    (0, Some(1)) => text.push('?'),
                    (least, None) => text.push_str(&format!("{{{least},}}")),
                    (least, Some(most)) => text.push_str(&format!("{{{least},{most}}}")),
                }
            }
        }
        (text.len() <= MAX_LARK_BYTES).then_some(())
    }

    /// Whether the longest lexeme is never too long, and none hides another; `None` where that is too much work to find out.
    fn are_safe(&self, work: &Work) -> Option<bool> {
        if self.lexemes.iter().all(|lexeme| lexeme.single) {
            return Some(true);
        }
        let follow = Follow::new(self, work)?;
        let meet = |a: &Characters, b: &Characters| {
            work.add(a.0.len() + b.0.len())?;
            Some(a.meets(b))
        };
        let together = follow.first.get(&0).map(|(first, _)| first).into_iter().chain(&follow.after);
        // Many lexemes have the same ones behind them.
        let together: HashSet<&BTreeSet<usize>> = together.collect();
        for together in together {
            let all: Vec<&Lexeme> = together.iter().map(|number| &self.lexemes[*number]).collect();
            for (i, a) in all.iter().enumerate() {
                for b in all[i + 1..].iter().filter(|b| !(a.single && b.single)) {
                    if meet(&a.first, &b.first)? {
                        return Some(false);
                    }
                }
            }
        }
        for (lexeme, next) in self.lexemes.iter().zip(&follow.after) {
            for next in next {
                if meet(&lexeme.goes_on, &self.lexemes[*next].first)? {
                    return Some(false);
                }
            }
        }
        Some(true)
    }
}

/// Which lexemes begin rules, and which follow lexemes.
struct Follow {
    /// Of each rule the lexemes that it can begin with, and whether it can be nothing.
    first: BTreeMap<usize, (BTreeSet<usize>, bool)>,
    /// Of each rule, what can follow it.
    behind: BTreeMap<usize, BTreeSet<usize>>,
    /// Of each lexeme, what can follow it.
    after: Vec<BTreeSet<usize>>,
    changed: bool,
}

impl Follow {
    fn new(lexemes: &Lexemes, work: &Work) -> Option<Follow> {
        let forms = &lexemes.forms;
        let none = || forms.keys().map(|number| (*number, BTreeSet::new())).collect::<BTreeMap<_, _>>();
        let first = none().into_iter().map(|(number, none)| (number, (none, false))).collect();
        let after = vec![BTreeSet::new(); lexemes.lexemes.len()];
        let mut follow = Follow { first, behind: none(), after, changed: true };
        while std::mem::take(&mut follow.changed) {
            for (number, form) in forms {
                let found = follow.first_of(form, work)?;
                if follow.first.get(number) != Some(&found) {
                    follow.first.insert(*number, found);
                    follow.changed = true;
                }
            }
        }
        follow.changed = true;
        while std::mem::take(&mut follow.changed) {
            for (number, form) in forms {
                let behind = follow.behind[number].clone();
                follow.walk(form, &behind, work)?;
            }
        }
        Some(follow)
    }

    fn first_of(&self, form: &Form, work: &Work) -> Option<(BTreeSet<usize>, bool)> {
        work.add(1)?;
        Some(match form {
            Form::Lexeme(number) => (BTreeSet::from([*number]), false),
            Form::Rule(number) => {
                work.add(self.first[number].0.len())?;
                self.first[number].clone()
            }
            // It begins with a byte that no character has.
            Form::Token(_) => (BTreeSet::new(), false),
            Form::Sequence(parts) => {
                let mut all = BTreeSet::new();
                for part in parts {
                    let (first, nullable) = self.first_of(part, work)?;
                    work.add(first.len())?;
                    all.extend(first);
                    if !nullable {
                        return Some((all, false));
                    }
                }
                (all, true)
            }
            Form::Choice(parts) => {
                let (mut all, mut any) = (BTreeSet::new(), false);
                for part in parts {
                    let (first, nullable) = self.first_of(part, work)?;
                    work.add(first.len())?;
                    all.extend(first);
                    any |= nullable;
                }
                (all, any)
            }
            Form::Repeat(inner, least, _) => {
                let (first, nullable) = self.first_of(inner, work)?;
                (first, nullable || *least == 0)
            }
        })
    }

    /// Notes what follows each part, where this follows the whole.
    fn walk(&mut self, form: &Form, next: &BTreeSet<usize>, work: &Work) -> Option<()> {
        work.add(1 + next.len())?;
        match form {
            Form::Lexeme(number) => {
                let own = &mut self.after[*number];
                let before = own.len();
                own.extend(next);
                self.changed |= own.len() > before;
            }
            Form::Rule(number) => {
                let own = self.behind.entry(*number).or_default();
                let before = own.len();
                own.extend(next);
                self.changed |= own.len() > before;
            }
            Form::Token(_) => {}
            Form::Sequence(parts) => {
                let mut next = next.clone();
                for part in parts.iter().rev() {
                    self.walk(part, &next, work)?;
                    let (first, nullable) = self.first_of(part, work)?;
                    if !nullable {
                        next.clear();
                    }
                    next.extend(first);
                }
            }
            Form::Choice(parts) => {
                for part in parts {
                    self.walk(part, next, work)?;
                }
            }
            Form::Repeat(inner, _, most) => {
                let mut next = next.clone();
                if *most != Some(1) {
                    next.extend(self.first_of(inner, work)?.0);
                }
                self.walk(inner, &next, work)?;
            }
        }
        Some(())
    }
}

/// What is known of the rules that are regular.
struct Regular {
    /// Their expressions.
    texts: Vec<Option<String>>,
    /// Whether they can be nothing.
    nullable: Vec<bool>,
}

impl Regular {
    /// What would be too much work, or nests too deep with its rules written out, is left to be none.
    fn of(rules: &Rules, work: &Work) -> Regular {
        let count = rules.0.len();
        let mut regular = Regular { texts: vec![None; count], nullable: vec![false; count] };
        // Each behind all that it names; those that come back to themselves are never ready.
        let names: Vec<BTreeSet<usize>> = rules.0.iter().map(Node::names).collect();
        let mut named_by: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (number, names) in names.iter().enumerate() {
            names.iter().for_each(|name| named_by[*name].push(number));
        }
        let mut missing: Vec<usize> = names.iter().map(BTreeSet::len).collect();
        let mut depths = vec![0; count];
        let mut ready: Vec<usize> = (0..count).filter(|number| missing[*number] == 0).collect();
        while let Some(number) = ready.pop() {
            let node = &rules.0[number];
            depths[number] = node.depth(&depths);
            if depths[number] > MAX_DEPTH {
                continue;
            }
            let Some(text) = regular.text(node, work) else { continue };
            let Some(nullable) = regular.is_nullable(node, work) else { continue };
            (regular.texts[number], regular.nullable[number]) = (Some(text), nullable);
            for &user in &named_by[number] {
                missing[user] -= 1;
                if missing[user] == 0 {
                    ready.push(user);
                }
            }
        }
        regular
    }

    /// A part's expression, where it is regular and neither too long nor too much work.
    fn text(&self, node: &Node, work: &Work) -> Option<String> {
        let text = match node {
            Node::Characters(set) => set.regex(),
            Node::Rule(number) => self.texts[*number].clone()?,
            Node::Token(_) => return None,
            // Something, so that what names it many times is too long.
            Node::Sequence(parts) if parts.is_empty() => "(?:)".to_owned(),
            Node::Sequence(parts) => {
                let mut whole = String::new();
                for part in parts {
                    whole.push_str(&self.text(part, work)?);
                    if whole.len() > MAX_LEXEME {
                        return None;
                    }
                }
                whole
            }
            Node::Choice(parts) => {
                let mut whole = "(?:".to_owned();
                for (i, part) in parts.iter().enumerate() {
                    if i > 0 {
                        whole.push('|');
                    }
                    whole.push_str(&self.text(part, work)?);
                    if whole.len() > MAX_LEXEME {
                        return None;
                    }
                }
                whole + ")"
            }
            Node::Repeat(inner, least, most) => {
                let most = most.map_or(String::new(), |most| most.to_string());
                format!("(?:{}){{{least},{most}}}", self.text(inner, work)?)
            }
        };
        work.add(1 + TEXT_WORK * text.len())?;
        (text.len() <= MAX_LEXEME).then_some(text)
    }

    /// Whether a part can be nothing, for one that is regular.
    fn is_nullable(&self, node: &Node, work: &Work) -> Option<bool> {
        work.add(1)?;
        Some(match node {
            Node::Characters(_) | Node::Token(_) => false,
            Node::Rule(number) => self.nullable[*number],
            Node::Sequence(parts) => {
                for part in parts {
                    if !self.is_nullable(part, work)? {
                        return Some(false);
                    }
                }
                true
            }
            Node::Choice(parts) => {
                for part in parts {
                    if self.is_nullable(part, work)? {
                        return Some(true);
                    }
                }
                false
            }
            Node::Repeat(inner, least, _) => *least == 0 || self.is_nullable(inner, work)?,
        })
    }

    /// Whether a part names a rule that is not regular, or a token.
    fn is_recursive(&self, node: &Node, work: &Work) -> Option<bool> {
        work.add(1)?;
        Some(match node {
            Node::Characters(_) => false,
            Node::Rule(number) => self.texts[*number].is_none(),
            Node::Token(_) => true,
            Node::Sequence(parts) | Node::Choice(parts) => {
                for part in parts {
                    if self.is_recursive(part, work)? {
                        return Some(true);
                    }
                }
                false
            }
            Node::Repeat(inner, ..) => self.is_recursive(inner, work)?,
        })
    }
}

/// Writes rules in lexemes.
struct Builder<'r> {
    rules: &'r Rules,
    /// What is regular, where lexemes are longer than a character, and what that may cost.
    long: Option<(&'r Regular, &'r Work)>,
    numbers: HashMap<String, usize>,
    /// What automata may cost.
    automata: Work,
}

impl Builder<'_> {
    /// A part in lexemes; those that are new, and the rules that it names, are added. `None` where it would be too much work.
    fn form(&mut self, node: &Node, lexemes: &mut Vec<Lexeme>, used: &mut Vec<usize>) -> Option<Form> {
        if let Node::Characters(set) = node {
            return Some(Form::Lexeme(self.single(set, lexemes)?));
        }
        if let Some((regular, work)) = self.long {
            work.add(FORM_WORK)?;
            let is_lexeme = !regular.is_recursive(node, work)? && !regular.is_nullable(node, work)?;
            if is_lexeme && let Some(text) = regular.text(node, work) {
                return Some(Form::Lexeme(self.lexeme(node, text, lexemes, work)?));
            }
            match node {
                // It can be nothing, as no lexeme can.
                Node::Rule(number) if regular.texts[*number].is_some() => {
                    return self.form(&self.rules.0[*number], lexemes, used);
                }
                // At least one of them is a lexeme, if that is none.
                Node::Repeat(inner, 0, most)
                    if !matches!(most, Some(0 | 1)) && !regular.is_nullable(inner, work)? =>
                {
                    let once = Node::Repeat(inner.clone(), 1, *most);
                    return Some(match regular.is_recursive(inner, work)? {
                        true => Form::Repeat(Box::new(self.form(inner, lexemes, used)?), 0, *most),
                        false => Form::Repeat(Box::new(self.form(&once, lexemes, used)?), 0, Some(1)),
                    });
                }
                _ => {}
            }
        }
        let mut all = |parts: &[Node]| parts.iter().map(|part| self.form(part, lexemes, used)).collect::<Option<_>>();
        Some(match node {
            Node::Rule(number) => {
                used.push(*number);
                Form::Rule(*number)
            }
            Node::Token(name) => Form::Token(name.clone()),
            // The first is always a lexeme.
            Node::Characters(_) | Node::Repeat(_, _, Some(0)) => Form::Sequence(Vec::new()),
            Node::Sequence(parts) => Form::Sequence(all(parts)?),
            Node::Choice(parts) => Form::Choice(all(parts)?),
            Node::Repeat(inner, least, most) => Form::Repeat(Box::new(self.form(inner, lexemes, used)?), *least, *most),
        })
    }

    /// A lexeme of one character.
    fn single(&mut self, set: &Characters, lexemes: &mut Vec<Lexeme>) -> Option<usize> {
        let lexeme = Lexeme { regex: set.regex(), first: set.clone(), goes_on: Characters::default(), single: true };
        self.add(lexeme, lexemes)
    }

    fn lexeme(&mut self, node: &Node, text: String, lexemes: &mut Vec<Lexeme>, work: &Work) -> Option<usize> {
        if let Some(number) = self.numbers.get(&text) {
            return Some(*number);
        }
        let anywhere = || {
            let mut all = Vec::new();
            ranges(node, self.rules, &mut all, work)?;
            Some(Characters::new(all))
        };
        let (first, goes_on) = match Automaton::of(node, self.rules, &self.automata) {
            None => {
                let all = anywhere()?;
                (all.clone(), all)
            }
            Some(automaton) => {
                let goes_on = automaton.goes_on(&self.automata);
                (automaton.union(&automaton.first), goes_on.map_or_else(anywhere, Some)?)
            }
        };
        work.add(RANGE_WORK * (first.0.len() + goes_on.0.len()))?;
        self.add(Lexeme { regex: text, first, goes_on, single: false }, lexemes)
    }

    /// Adds a lexeme, unless there is one of that text.
    fn add(&mut self, lexeme: Lexeme, lexemes: &mut Vec<Lexeme>) -> Option<usize> {
        if let Some(number) = self.numbers.get(&lexeme.regex) {
            return Some(*number);
        }
        self.numbers.insert(lexeme.regex.clone(), lexemes.len());
        lexemes.push(lexeme);
        // More would not be compared with each other.
        (self.long.is_none() || lexemes.len() <= MAX_LEXEMES).then_some(lexemes.len() - 1)
    }
}

/// Adds all characters of a regular part; `None` where that is too much work.
fn ranges(node: &Node, rules: &Rules, all: &mut Vec<(u32, u32)>, work: &Work) -> Option<()> {
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

/// Glushkov's automaton of a regular part: a position for each character in it.
#[derive(Debug, Default)]
struct Automaton {
    classes: Vec<Characters>,
    first: Vec<usize>,
    follow: Vec<BTreeSet<usize>>,
    last: BTreeSet<usize>,
}

/// Where a part of it begins and ends.
struct Fragment {
    first: Vec<usize>,
    last: Vec<usize>,
    nullable: bool,
}

impl Automaton {
    /// `None` where it would be too large, or too much work.
    fn of(node: &Node, rules: &Rules, work: &Work) -> Option<Automaton> {
        let mut automaton = Automaton::default();
        let Fragment { first, last, .. } = automaton.add(node, rules, work)?;
        (automaton.first, automaton.last) = (first, last.into_iter().collect());
        Some(automaton)
    }

    fn add(&mut self, node: &Node, rules: &Rules, work: &Work) -> Option<Fragment> {
        work.add(1)?;
        Some(match node {
            Node::Characters(set) => {
                let position = self.classes.len();
                if position >= MAX_POSITIONS {
                    return None;
                }
                self.classes.push(set.clone());
                self.follow.push(BTreeSet::new());
                Fragment { first: vec![position], last: vec![position], nullable: false }
            }
            Node::Rule(number) => self.add(&rules.0[*number], rules, work)?,
            Node::Token(_) => return None,
            Node::Sequence(parts) => {
                let mut whole = Fragment { first: Vec::new(), last: Vec::new(), nullable: true };
                for part in parts {
                    let next = self.add(part, rules, work)?;
                    whole = self.join(whole, next, work)?;
                }
                whole
            }
            Node::Choice(parts) => {
                let mut whole = Fragment { first: Vec::new(), last: Vec::new(), nullable: false };
                for part in parts {
                    let next = self.add(part, rules, work)?;
                    work.add(next.first.len() + next.last.len())?;
                    whole.first.extend(next.first);
                    whole.last.extend(next.last);
                    whole.nullable |= next.nullable;
                }
                whole
            }
            Node::Repeat(inner, least, most) => {
                let (mut whole, before) =
                    (Fragment { first: Vec::new(), last: Vec::new(), nullable: true }, self.classes.len());
                for _ in 0..*least {
                    let next = self.add(inner, rules, work)?;
                    whole = self.join(whole, next, work)?;
                    // Nothing, however often.
                    if self.classes.len() == before {
                        return Some(whole);
                    }
                }
                match most {
                    None => {
                        let mut next = self.add(inner, rules, work)?;
                        self.link(&next.last, &next.first, work)?;
                        next.nullable = true;
                        self.join(whole, next, work)?
                    }
                    Some(most) => {
                        for _ in *least..*most {
                            let mut next = self.add(inner, rules, work)?;
                            next.nullable = true;
                            whole = self.join(whole, next, work)?;
                            if self.classes.len() == before {
                                return Some(whole);
                            }
                        }
                        whole
                    }
                }
            }
        })
    }

    fn link(&mut self, from: &[usize], to: &[usize], work: &Work) -> Option<()> {
        work.add(from.len().saturating_mul(to.len()))?;
        for position in from {
            self.follow[*position].extend(to);
        }
        Some(())
    }

    fn join(&mut self, a: Fragment, b: Fragment, work: &Work) -> Option<Fragment> {
        self.link(&a.last, &b.first, work)?;
        work.add(a.last.len() + b.first.len())?;
        let mut first = a.first;
        if a.nullable {
            first.extend(&b.first);
        }
        let mut last = b.last;
        if b.nullable {
            last.extend(a.last);
        }
        Some(Fragment { first, last, nullable: a.nullable && b.nullable })
    }

    fn union<'p>(&self, positions: impl IntoIterator<Item = &'p usize>) -> Characters {
        Characters::new(positions.into_iter().flat_map(|position| self.classes[*position].0.iter().copied()).collect())
    }

    /// The characters with which a text that it takes can go on; `None` where its deterministic form is too large, or too much work.
    fn goes_on(&self, work: &Work) -> Option<Characters> {
        let mut found: BTreeSet<usize> = BTreeSet::new();
        let mut seen: HashSet<Vec<usize>> = HashSet::new();
        let mut open: Vec<BTreeSet<usize>> = vec![self.first.iter().copied().collect()];
        // States are what may be read next; of each, the next ones by character.
        while let Some(next) = open.pop() {
            let mut bounds: BTreeSet<u32> = BTreeSet::new();
            for (first, last) in next.iter().flat_map(|position| &self.classes[*position].0) {
                work.add(1)?;
                bounds.extend([*first, last + 1]);
            }
            work.add(bounds.len().saturating_mul(next.len()))?;
            for c in bounds {
                let read: Vec<usize> =
                    next.iter().filter(|position| self.classes[**position].has(c)).copied().collect();
                if read.is_empty() || seen.contains(&read) {
                    continue;
                }
                if seen.len() == MAX_STATES {
                    return None;
                }
                work.add(read.iter().map(|position| self.follow[*position].len()).sum())?;
                let follow: BTreeSet<usize> =
                    read.iter().flat_map(|position| &self.follow[*position]).copied().collect();
                if read.iter().any(|position| self.last.contains(position)) {
                    found.extend(&follow);
                }
                seen.insert(read);
                open.push(follow);
            }
        }
        Some(self.union(&found))
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    /// Whether the long lexemes of a grammar are few enough to be looked at.
    fn is_looked_at(gbnf: &str) -> bool {
        let (rules, work) = (read::rules(gbnf).unwrap(), Work::of(MAX_WORK));
        let regular = Regular::of(&rules, &work);
        let found = Lexemes::of(&rules, Some((&regular, &work)));
        assert!(work.done.get() < MAX_WORK + (1 << 20), "no more is done behind the limit");
        found.is_some_and(|lexemes| lexemes.are_safe(&work).is_some())
    }

    /// Rules of which each is twice the one before: the last is `2^count` times the text.
    fn doubled(text: &str, count: usize) -> String {
        let rules: String = (0..count).map(|i| format!("a{i} ::= a{0} a{0}\n", i + 1)).collect();
        format!("{rules}a{count} ::= {text}\n")
    }

    #[test]
    fn what_short_grammars_stand_for_is_bounded() {
        assert!(is_looked_at("root ::= \"[\" (num | root)? \"]\"\nnum ::= [0-9]+"));
        // Alternatives of 30,000 characters each.
        let alternatives: Vec<String> = (0..20_000).map(|i| format!("a0 \"{i}\"")).collect();
        let alternatives = format!("root ::= {}\n{}", alternatives.join(" | "), doubled("\"x\"", 15));
        assert!(!is_looked_at(&alternatives));
        // Parts that can be nothing, of 4096 each.
        let nothing = format!("root ::= {}\n{}", "a0 ".repeat(80_000), doubled("\"x\"?", 12));
        assert!(!is_looked_at(&nothing));
        for gbnf in [alternatives, nothing] {
            let lark = lark(&read::rules(&gbnf).unwrap()).unwrap();
            assert!(lark.len() < 8 * gbnf.len(), "{} of {}", lark.len(), gbnf.len());
        }
    }

    #[test]
    fn automata_are_bounded() {
        // Each position is followed by each.
        let all = format!("root ::= ({})+", "\"x\"? ".repeat(1000));
        let (rules, work) = (read::rules(&all).unwrap(), Work::of(100_000));
        assert!(Automaton::of(&rules.0[0], &rules, &work).is_none());
        assert!(work.done.get() < 100_000 + MAX_POSITIONS * MAX_POSITIONS + (1 << 20));
    }
}
