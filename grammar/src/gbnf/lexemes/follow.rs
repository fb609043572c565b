//! Lexemes that can begin a rule, and lexemes that can follow a lexeme.

use std::collections::{BTreeMap, BTreeSet};

use super::{Form, Lexemes, Work};

/// Lexemes that begin rules, and lexemes that follow lexemes.
pub(super) struct Follow {
    /// For each rule, the lexemes that it can begin with, and whether it can be empty.
    pub first: BTreeMap<usize, (BTreeSet<usize>, bool)>,
    /// For each rule, the lexemes that can follow it.
    behind: BTreeMap<usize, BTreeSet<usize>>,
    /// For each lexeme, the lexemes that can follow it.
    pub after: Vec<BTreeSet<usize>>,
    changed: bool,
}

impl Follow {
    pub(super) fn new(lexemes: &Lexemes, work: &Work) -> Option<Follow> {
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
            // A token begins with a byte that no character has.
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

    /// Records the lexemes that follow each part, if `next` follows the whole.
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
