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

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Characters, Node, Rules};

/// Longest regular expression of a lexeme, in bytes; rules in it are written out.
const MAX_LEXEME: usize = 1 << 16;
/// Most positions of a lexeme's automaton, and most of its states; one that has more is taken to go on with any of its characters.
const MAX_POSITIONS: usize = 1024;
const MAX_STATES: usize = 1024;
/// Most comparisons of a character with a position for one grammar; where there are more, lexemes are taken to go on with any of their characters.
const MAX_WORK: usize = 20_000_000;
/// Most lexemes that are compared with each other.
const MAX_LEXEMES: usize = 512;

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
pub(super) struct Lexemes {
    /// The rules that the root leads to.
    forms: BTreeMap<usize, Form>,
    lexemes: Vec<Lexeme>,
}

impl Lexemes {
    pub(super) fn new(rules: &Rules) -> Lexemes {
        let regular = regular_rules(rules);
        let long = Lexemes::of(rules, &regular, true);
        if long.are_safe() { long } else { Lexemes::of(rules, &regular, false) }
    }

    fn of(rules: &Rules, regular: &[Option<String>], long: bool) -> Lexemes {
        let (mut builder, mut result) =
            (Builder { rules, regular, long, numbers: HashMap::new(), work: 0 }, Lexemes::default());
        let (mut open, mut seen) = (vec![0], HashSet::from([0]));
        while let Some(number) = open.pop() {
            let mut used = Vec::new();
            let form = builder.form(&rules.0[number], &mut result.lexemes, &mut used);
            result.forms.insert(number, form);
            open.extend(used.into_iter().filter(|number| seen.insert(*number)));
        }
        result
    }

    /// Rules by their number, each as Lark.
    pub(super) fn rules(&self) -> impl Iterator<Item = (usize, String)> {
        self.forms.iter().map(|(number, form)| (*number, self.lark(form)))
    }

    fn lark(&self, form: &Form) -> String {
        let all =
            |all: &[Form], between: &str| all.iter().map(|form| self.lark(form)).collect::<Vec<_>>().join(between);
        match form {
            Form::Lexeme(number) => format!("/{}/", self.lexemes[*number].regex),
            Form::Rule(number) => format!("r{number}"),
            Form::Token(name) => name.clone(),
            Form::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Form::Sequence(parts) => format!("({})", all(parts, " ")),
            Form::Choice(parts) => format!("({})", all(parts, " | ")),
            Form::Repeat(inner, least, most) => {
                let inner = self.lark(inner);
                match (least, most) {
                    (0, None) => format!("({inner})*"),
                    (1, None) => format!("({inner})+"),
                    (0, Some(1)) => format!("({inner})?"),
                    (least, None) => format!("({inner}){{{least},}}"),
                    (least, Some(most)) => format!("({inner}){{{least},{most}}}"),
                }
            }
        }
    }

    fn are_safe(&self) -> bool {
        if self.lexemes.iter().all(|lexeme| lexeme.single) {
            return true;
        }
        if self.lexemes.len() > MAX_LEXEMES {
            return false;
        }
        let follow = Follow::new(self);
        let differ = |together: &BTreeSet<usize>| {
            let all: Vec<&Lexeme> = together.iter().map(|number| &self.lexemes[*number]).collect();
            all.iter()
                .enumerate()
                .all(|(i, a)| all[i + 1..].iter().all(|b| a.single && b.single || !a.first.meets(&b.first)))
        };
        let ends = |(number, next): (usize, &BTreeSet<usize>)| {
            next.iter().all(|next| !self.lexemes[number].goes_on.meets(&self.lexemes[*next].first))
        };
        let first = follow.first.get(&0).map(|(first, _)| first);
        first.is_none_or(differ) && follow.after.iter().all(differ) && follow.after.iter().enumerate().all(ends)
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
    fn new(lexemes: &Lexemes) -> Follow {
        let forms = &lexemes.forms;
        let none = || forms.keys().map(|number| (*number, BTreeSet::new())).collect::<BTreeMap<_, _>>();
        let first = none().into_iter().map(|(number, none)| (number, (none, false))).collect();
        let after = vec![BTreeSet::new(); lexemes.lexemes.len()];
        let mut follow = Follow { first, behind: none(), after, changed: true };
        while std::mem::take(&mut follow.changed) {
            for (number, form) in forms {
                let found = follow.first_of(form);
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
                follow.walk(form, &behind);
            }
        }
        follow
    }

    fn first_of(&self, form: &Form) -> (BTreeSet<usize>, bool) {
        match form {
            Form::Lexeme(number) => (BTreeSet::from([*number]), false),
            Form::Rule(number) => self.first[number].clone(),
            // It begins with a byte that no character has.
            Form::Token(_) => (BTreeSet::new(), false),
            Form::Sequence(parts) => {
                let mut all = BTreeSet::new();
                for part in parts {
                    let (first, nullable) = self.first_of(part);
                    all.extend(first);
                    if !nullable {
                        return (all, false);
                    }
                }
                (all, true)
            }
            Form::Choice(parts) => {
                let (mut all, mut any) = (BTreeSet::new(), false);
                for (first, nullable) in parts.iter().map(|part| self.first_of(part)) {
                    all.extend(first);
                    any |= nullable;
                }
                (all, any)
            }
            Form::Repeat(inner, least, _) => {
                let (first, nullable) = self.first_of(inner);
                (first, nullable || *least == 0)
            }
        }
    }

    /// Notes what follows each part, where this follows the whole.
    fn walk(&mut self, form: &Form, next: &BTreeSet<usize>) {
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
                    self.walk(part, &next);
                    let (first, nullable) = self.first_of(part);
                    if !nullable {
                        next.clear();
                    }
                    next.extend(first);
                }
            }
            Form::Choice(parts) => parts.iter().for_each(|part| self.walk(part, next)),
            Form::Repeat(inner, _, most) => {
                let mut next = next.clone();
                if *most != Some(1) {
                    next.extend(self.first_of(inner).0);
                }
                self.walk(inner, &next);
            }
        }
    }
}

/// The expressions of rules that are regular.
fn regular_rules(rules: &Rules) -> Vec<Option<String>> {
    let mut regular: Vec<Option<String>> = vec![None; rules.0.len()];
    // Rules of which all that they name are known, until there is no further one.
    loop {
        let next: Vec<(usize, String)> = (0..rules.0.len())
            .filter(|number| regular[*number].is_none())
            .filter_map(|number| Some((number, regex(&rules.0[number], &regular)?)))
            .collect();
        if next.is_empty() {
            return regular;
        }
        next.into_iter().for_each(|(number, text)| regular[number] = Some(text));
    }
}

/// A part's expression, where it is regular and not too long.
fn regex(node: &Node, regular: &[Option<String>]) -> Option<String> {
    let text = match node {
        Node::Characters(set) => set.regex(),
        Node::Rule(number) => regular[*number].clone()?,
        Node::Token(_) => return None,
        // Something, so that what names it many times is too long.
        Node::Sequence(parts) if parts.is_empty() => "(?:)".to_owned(),
        Node::Sequence(parts) => {
            let mut whole = String::new();
            for part in parts {
                whole.push_str(&regex(part, regular)?);
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
                whole.push_str(&regex(part, regular)?);
                if whole.len() > MAX_LEXEME {
                    return None;
                }
            }
            whole + ")"
        }
        Node::Repeat(inner, least, most) => {
            let most = most.map_or(String::new(), |most| most.to_string());
            format!("(?:{}){{{least},{most}}}", regex(inner, regular)?)
        }
    };
    (text.len() <= MAX_LEXEME).then_some(text)
}

/// Whether a part can be nothing, for one that is regular.
fn is_nullable(node: &Node, rules: &Rules) -> bool {
    match node {
        Node::Characters(_) | Node::Token(_) => false,
        Node::Rule(number) => is_nullable(&rules.0[*number], rules),
        Node::Sequence(parts) => parts.iter().all(|part| is_nullable(part, rules)),
        Node::Choice(parts) => parts.iter().any(|part| is_nullable(part, rules)),
        Node::Repeat(inner, least, _) => *least == 0 || is_nullable(inner, rules),
    }
}

/// Writes rules in lexemes.
struct Builder<'r> {
    rules: &'r Rules,
    regular: &'r [Option<String>],
    /// Whether lexemes are longer than a character.
    long: bool,
    numbers: HashMap<String, usize>,
    /// Comparisons so far.
    work: usize,
}

impl Builder<'_> {
    /// A part in lexemes; those that are new, and the rules that it names, are added.
    fn form(&mut self, node: &Node, lexemes: &mut Vec<Lexeme>, used: &mut Vec<usize>) -> Form {
        let is_lexeme = match node {
            Node::Characters(_) => true,
            _ => self.long && !is_recursive(node, self.regular) && !is_nullable(node, self.rules),
        };
        if let Some(text) = Some(node).filter(|_| is_lexeme).and_then(|node| regex(node, self.regular)) {
            return Form::Lexeme(self.lexeme(node, text, lexemes));
        }
        match node {
            // It can be nothing, as no lexeme can.
            Node::Rule(number) if self.long && self.regular[*number].is_some() => {
                self.form(&self.rules.0[*number], lexemes, used)
            }
            Node::Rule(number) => {
                used.push(*number);
                Form::Rule(*number)
            }
            // Always a lexeme.
            Node::Characters(_) => Form::Sequence(Vec::new()),
            Node::Token(name) => Form::Token(name.clone()),
            Node::Sequence(parts) => Form::Sequence(parts.iter().map(|part| self.form(part, lexemes, used)).collect()),
            Node::Choice(parts) => Form::Choice(parts.iter().map(|part| self.form(part, lexemes, used)).collect()),
            Node::Repeat(_, _, Some(0)) => Form::Sequence(Vec::new()),
            // At least one of them is a lexeme, if that is none.
            Node::Repeat(inner, 0, most) if self.long && *most != Some(1) && !is_nullable(inner, self.rules) => {
                let once = Node::Repeat(inner.clone(), 1, *most);
                match is_recursive(inner, self.regular) {
                    true => Form::Repeat(Box::new(self.form(inner, lexemes, used)), 0, *most),
                    false => Form::Repeat(Box::new(self.form(&once, lexemes, used)), 0, Some(1)),
                }
            }
            Node::Repeat(inner, least, most) => Form::Repeat(Box::new(self.form(inner, lexemes, used)), *least, *most),
        }
    }

    fn lexeme(&mut self, node: &Node, text: String, lexemes: &mut Vec<Lexeme>) -> usize {
        if let Some(number) = self.numbers.get(&text) {
            return *number;
        }
        let (first, goes_on) = Automaton::of(node, self.rules).map_or_else(
            || (anywhere(node, self.rules), anywhere(node, self.rules)),
            |automaton| {
                let goes_on = automaton.goes_on(&mut self.work).unwrap_or_else(|| anywhere(node, self.rules));
                (automaton.union(&automaton.first), goes_on)
            },
        );
        let single = matches!(node, Node::Characters(_));
        lexemes.push(Lexeme { regex: text.clone(), first, goes_on, single });
        self.numbers.insert(text, lexemes.len() - 1);
        lexemes.len() - 1
    }
}

/// Whether a part names a rule that is not regular, or a token.
fn is_recursive(node: &Node, regular: &[Option<String>]) -> bool {
    match node {
        Node::Characters(_) => false,
        Node::Rule(number) => regular[*number].is_none(),
        Node::Token(_) => true,
        Node::Sequence(parts) | Node::Choice(parts) => parts.iter().any(|part| is_recursive(part, regular)),
        Node::Repeat(inner, ..) => is_recursive(inner, regular),
    }
}

/// All characters of a regular part.
fn anywhere(node: &Node, rules: &Rules) -> Characters {
    match node {
        Node::Characters(set) => set.clone(),
        Node::Rule(number) => anywhere(&rules.0[*number], rules),
        Node::Token(_) => Characters::default(),
        Node::Sequence(parts) | Node::Choice(parts) => {
            parts.iter().fold(Characters::default(), |union, part| union.union(&anywhere(part, rules)))
        }
        Node::Repeat(inner, ..) => anywhere(inner, rules),
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
    /// `None` where it would be too large.
    fn of(node: &Node, rules: &Rules) -> Option<Automaton> {
        let mut automaton = Automaton::default();
        let Fragment { first, last, .. } = automaton.add(node, rules)?;
        (automaton.first, automaton.last) = (first, last.into_iter().collect());
        Some(automaton)
    }

    fn add(&mut self, node: &Node, rules: &Rules) -> Option<Fragment> {
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
            Node::Rule(number) => self.add(&rules.0[*number], rules)?,
            Node::Token(_) => return None,
            Node::Sequence(parts) => {
                let mut whole = Fragment { first: Vec::new(), last: Vec::new(), nullable: true };
                for part in parts {
                    let next = self.add(part, rules)?;
                    whole = self.join(whole, next);
                }
                whole
            }
            Node::Choice(parts) => {
                let mut whole = Fragment { first: Vec::new(), last: Vec::new(), nullable: false };
                for part in parts {
                    let next = self.add(part, rules)?;
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
                    let next = self.add(inner, rules)?;
                    whole = self.join(whole, next);
                    // Nothing, however often.
                    if self.classes.len() == before {
                        return Some(whole);
                    }
                }
                match most {
                    None => {
                        let mut next = self.add(inner, rules)?;
                        self.link(&next.last, &next.first);
                        next.nullable = true;
                        self.join(whole, next)
                    }
                    Some(most) => {
                        for _ in *least..*most {
                            let mut next = self.add(inner, rules)?;
                            next.nullable = true;
                            whole = self.join(whole, next);
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

    fn link(&mut self, from: &[usize], to: &[usize]) {
        for position in from {
            self.follow[*position].extend(to);
        }
    }

    fn join(&mut self, a: Fragment, b: Fragment) -> Fragment {
        self.link(&a.last, &b.first);
        let mut first = a.first;
        if a.nullable {
            first.extend(&b.first);
        }
        let mut last = b.last;
        if b.nullable {
            last.extend(a.last);
        }
        Fragment { first, last, nullable: a.nullable && b.nullable }
    }

    fn union<'p>(&self, positions: impl IntoIterator<Item = &'p usize>) -> Characters {
        Characters::new(positions.into_iter().flat_map(|position| self.classes[*position].0.iter().copied()).collect())
    }

    /// The characters with which a text that it takes can go on; `None` where its deterministic form is too large.
    fn goes_on(&self, work: &mut usize) -> Option<Characters> {
        let mut found = Characters::default();
        let mut seen: HashSet<Vec<usize>> = HashSet::new();
        let mut open: Vec<BTreeSet<usize>> = vec![self.first.iter().copied().collect()];
        // States are what may be read next; of each, the next ones by character.
        while let Some(next) = open.pop() {
            let mut bounds: BTreeSet<u32> = BTreeSet::new();
            for (first, last) in next.iter().flat_map(|position| &self.classes[*position].0) {
                bounds.extend([*first, last + 1]);
            }
            *work = work.saturating_add(bounds.len() * next.len());
            if *work > MAX_WORK {
                return None;
            }
            for c in bounds {
                let has = |position: &&usize| self.classes[**position].0.iter().any(|(a, b)| (*a..=*b).contains(&c));
                let read: Vec<usize> = next.iter().filter(has).copied().collect();
                if read.is_empty() || !seen.insert(read.clone()) {
                    continue;
                }
                if seen.len() > MAX_STATES {
                    return None;
                }
                let follow: BTreeSet<usize> =
                    read.iter().flat_map(|position| &self.follow[*position]).copied().collect();
                if read.iter().any(|position| self.last.contains(position)) {
                    found = found.union(&self.union(&follow));
                }
                open.push(follow);
            }
        }
        Some(found)
    }
}
