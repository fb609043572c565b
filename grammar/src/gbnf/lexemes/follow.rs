//! Sets of lexemes that can begin a rule or follow a lexeme.

use std::collections::{BTreeMap, BTreeSet};

use super::{Lexemes, RuleForm, WorkLimit};

/// Sets of lexemes that can begin a rule, follow a rule, or follow a lexeme.
pub(super) struct Follow {
    /// Lexemes that can begin each rule, and whether the rule can be empty.
    pub first: BTreeMap<usize, (BTreeSet<usize>, bool)>,
    /// Lexemes that can follow each rule.
    rule_follow: BTreeMap<usize, BTreeSet<usize>>,
    /// Lexemes that can follow each lexeme.
    pub lexeme_follow: Vec<BTreeSet<usize>>,
    changed: bool,
}

impl Follow {
    pub(super) fn new(lexemes: &Lexemes, work: &WorkLimit) -> Option<Follow> {
        let rule_forms = &lexemes.rule_forms;
        let none = || rule_forms.keys().map(|number| (*number, BTreeSet::new())).collect::<BTreeMap<_, _>>();
        let first = none().into_iter().map(|(number, none)| (number, (none, false))).collect();
        let lexeme_follow = vec![BTreeSet::new(); lexemes.lexemes.len()];
        let mut follow = Follow { first, rule_follow: none(), lexeme_follow, changed: true };
        while std::mem::take(&mut follow.changed) {
            for (number, form) in rule_forms {
                let found = follow.first_set(form, work)?;
                if follow.first.get(number) != Some(&found) {
                    follow.first.insert(*number, found);
                    follow.changed = true;
                }
            }
        }
        follow.changed = true;
        while std::mem::take(&mut follow.changed) {
            for (number, form) in rule_forms {
                let rule_follow = follow.rule_follow[number].clone();
                follow.walk(form, &rule_follow, work)?;
            }
        }
        Some(follow)
    }

    fn first_set(&self, form: &RuleForm, work: &WorkLimit) -> Option<(BTreeSet<usize>, bool)> {
        work.add(1)?;
        Some(match form {
            RuleForm::Lexeme(number) => (BTreeSet::from([*number]), false),
            RuleForm::Rule(number) => {
                work.add(self.first[number].0.len())?;
                self.first[number].clone()
            }
            // A token starts with a byte that occurs in no character, so it cannot be confused with
            // a lexeme.
            RuleForm::Token(_) => (BTreeSet::new(), false),
            RuleForm::Sequence(parts) => {
                let mut all = BTreeSet::new();
                for part in parts {
                    let (first, nullable) = self.first_set(part, work)?;
                    work.add(first.len())?;
                    all.extend(first);
                    if !nullable {
                        return Some((all, false));
                    }
                }
                (all, true)
            }
            RuleForm::Choice(parts) => {
                let (mut all, mut any) = (BTreeSet::new(), false);
                for part in parts {
                    let (first, nullable) = self.first_set(part, work)?;
                    work.add(first.len())?;
                    all.extend(first);
                    any |= nullable;
                }
                (all, any)
            }
            RuleForm::Repeat(inner, min, _) => {
                let (first, nullable) = self.first_set(inner, work)?;
                (first, nullable || *min == 0)
            }
        })
    }

    /// Records the lexemes that follow each part of a form. `next` has the lexemes that follow the
    /// whole form.
    fn walk(&mut self, form: &RuleForm, next: &BTreeSet<usize>, work: &WorkLimit) -> Option<()> {
        work.add(1 + next.len())?;
        match form {
            RuleForm::Lexeme(number) => {
                let own = &mut self.lexeme_follow[*number];
                let before = own.len();
                own.extend(next);
                self.changed |= own.len() > before;
            }
            RuleForm::Rule(number) => {
                let own = self.rule_follow.entry(*number).or_default();
                let before = own.len();
                own.extend(next);
                self.changed |= own.len() > before;
            }
            RuleForm::Token(_) => {}
            RuleForm::Sequence(parts) => {
                let mut next = next.clone();
                for part in parts.iter().rev() {
                    self.walk(part, &next, work)?;
                    let (first, nullable) = self.first_set(part, work)?;
                    if !nullable {
                        next.clear();
                    }
                    next.extend(first);
                }
            }
            RuleForm::Choice(parts) => {
                for part in parts {
                    self.walk(part, next, work)?;
                }
            }
            RuleForm::Repeat(inner, _, max) => {
                let mut next = next.clone();
                if *max != Some(1) {
                    next.extend(self.first_set(inner, work)?.0);
                }
                self.walk(inner, &next, work)?;
            }
        }
        Some(())
    }
}
