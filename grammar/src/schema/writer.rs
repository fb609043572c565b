//! Writer of Lark rules for a schema, with one rule for each conjunction of subschemas.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::Value;

use super::alternative::{Alternative, ArraySet, Conjunction, Content, ExactValue, Literal, ObjectSet, TextSet};
use super::automaton::{Automaton, Brackets, Node, Repeat, list};
use super::expand::Sets;
use super::keywords::schema_error;
use super::layout::{ArrayLayout, NamedMember, ObjectLayout};
use super::number::{NumberForm, NumberSet};
use super::text::{self, Condition};
use crate::GrammarError;

/// Expression for white space between JSON tokens. Its length is bounded, since a model that is
/// uncertain may otherwise write white space without end.
pub(super) const JSON_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,20}";
/// Max number of optional members that are written in the schema's order. If an object has more,
/// they may come in any order.
const MAX_ORDERED: usize = 250;
/// Max number of different values of a `uniqueItems` array that may come in any order.
const MAX_PERMUTED: usize = 8;
/// Max number of nodes of an automaton.
const MAX_NODES: usize = 4000;
/// Max number of rules of a schema.
const MAX_RULES: usize = 20_000;
/// Max number of items that a schema may require of an array.
const MAX_ITEMS: u64 = 100_000;
/// Max number of `contains` that may constrain one array.
const MAX_CONTAINS: usize = 4;

/// Writer of a schema's rules.
#[derive(Debug)]
pub(super) struct Writer<'s> {
    pub sets: Sets<'s>,
    pub lark: String,
    names: HashMap<Conjunction, usize>,
    todo: Vec<(Conjunction, usize)>,
    terminals: HashMap<String, usize>,
    automata: usize,
    /// Whether names are so restricted that a key may have only duplicates as completions.
    pub is_narrow: bool,
}

impl<'s> Writer<'s> {
    pub fn new(schema: &'s Value) -> Writer<'s> {
        Writer {
            sets: Sets::new(schema),
            lark: String::new(),
            names: HashMap::new(),
            todo: Vec::new(),
            terminals: HashMap::new(),
            automata: 0,
            is_narrow: false,
        }
    }

    /// Writes the rules of all values of a schema. The rule `start` comes first.
    pub fn write(&mut self) -> Result<(), GrammarError> {
        let root = Conjunction::from([Literal::positive(0)]);
        if let Content::None { .. } = self.sets.content(&root)? {
            return Err(self.unsatisfiable_error(root)?);
        }
        let start = self.rule(&root);
        let _ = writeln!(self.lark, "start: {start}");
        while let Some((state, number)) = self.todo.pop() {
            if self.names.len() > MAX_RULES {
                return Err(schema_error("#", format!("the schema has more than {MAX_RULES} different parts")));
            }
            let set = self.sets.state(&state)?;
            let at = state.iter().next().map_or(0, |literal| literal.subschema);
            let mut all = Vec::new();
            let (mut values, mut others) = (Vec::new(), Vec::new());
            for alternative in set.alternatives.iter() {
                match alternative {
                    Alternative::Values(own) => values.extend(own.iter().cloned()),
                    other => others.push(other.clone()),
                }
            }
            all.extend(self.values(&values));
            for alternative in others {
                all.extend(self.alternative(&alternative, at)?);
            }
            if all.is_empty() {
                return Err(self.unsatisfiable_error(state)?);
            }
            all.dedup();
            let _ = writeln!(self.lark, "s{number}: {}", all.join(" | "));
        }
        Ok(())
    }

    /// Returns an error that explains why subschemas have no common value that can be written.
    fn unsatisfiable_error(&mut self, state: Conjunction) -> Result<GrammarError, GrammarError> {
        if let Some((pointer, keyword)) = &self.sets.inexpressible {
            let message = format!("not, if or oneOf needs the opposite of {keyword} here, which cannot be enforced");
            return Ok(schema_error(pointer, message));
        }
        let mut pointers: Vec<&str> = Vec::new();
        for literal in self.required_part(state)? {
            pointers.push(self.sets.document.get(literal.subschema).1);
        }
        let together = match pointers.get(1) {
            Some(other) => format!(" together with {other}"),
            None => String::new(),
        };
        let message = format!(
            "no JSON value satisfies this part of the schema{together}: the part allows nothing, contradicts itself, or refers to itself without end"
        );
        Ok(schema_error(pointers.first().unwrap_or(&"#"), message))
    }

    /// Returns the innermost conjunction that prevents values of `state`. Starts at `state`, and
    /// follows required members that have no value.
    fn required_part(&mut self, state: Conjunction) -> Result<Conjunction, GrammarError> {
        let mut seen = vec![state];
        while let Some(state) = seen.last() {
            let set = self.sets.state(state)?;
            let [Alternative::Object(objects)] = set.alternatives.as_slice() else { break };
            let mut next = None;
            for name in &objects.required {
                let part = self.sets.member_literals(objects, name)?;
                if next.is_none() && self.sets.content(&part)? != Content::Some {
                    next = Some(part);
                }
            }
            match next {
                // A value that must contain itself has no innermost member.
                Some(part) if seen.contains(&part) => break,
                Some(part) if !part.iter().all(|literal| literal.holds) => break,
                Some(part) => seen.push(part),
                None => break,
            }
        }
        Ok(seen.pop().unwrap_or_default())
    }

    /// Returns the name of a conjunction's rule. The rule itself is written later.
    fn rule(&mut self, state: &Conjunction) -> String {
        let next = self.names.len();
        let number = *self.names.entry(state.clone()).or_insert(next);
        if number == next {
            self.todo.push((state.clone(), number));
        }
        format!("s{number}")
    }

    /// Returns the name of a terminal whose texts satisfy all conditions.
    fn terminal(&mut self, all: &[Condition]) -> String {
        let all: Vec<String> = all
            .iter()
            .map(|Condition { regex, holds }| format!("{}/{regex}/", if *holds { "" } else { "~" }))
            .collect();
        let body = all.join(" & ");
        let next = self.terminals.len();
        let number = *self.terminals.entry(body.clone()).or_insert(next);
        if number == next {
            let _ = writeln!(self.lark, "T{number}: {body}");
        }
        format!("T{number}")
    }

    /// Returns fragments that match the listed values.
    fn values(&mut self, values: &[ExactValue]) -> Vec<String> {
        let (mut scalars, mut all) = (Vec::new(), Vec::new());
        for value in values {
            match &*value.value {
                Value::Array(_) | Value::Object(_) => all.push(self.value(&value.value)),
                scalar => scalars.push(scalar_regex(scalar)),
            }
        }
        if !scalars.is_empty() {
            all.push(self.terminal(&[Condition::matches(format!("(?:{})", scalars.join("|")))]));
        }
        all
    }

    fn value(&mut self, value: &Value) -> String {
        match value {
            Value::Array(all) => {
                let all: Vec<String> = all.iter().map(|value| self.value(value)).collect();
                format!("\"[\" {} \"]\"", all.join(" \",\" "))
            }
            Value::Object(members) => {
                let mut all = Vec::new();
                for (name, value) in members {
                    all.push(format!("{} \":\" {}", key(name), self.value(value)));
                }
                format!("\"{{\" {} \"}}\"", all.join(" \",\" "))
            }
            scalar => format!("/{}/", scalar_regex(scalar)),
        }
    }

    /// Returns a fragment for the values of an alternative, or `None` if it has no values.
    fn alternative(&mut self, alternative: &Alternative, at: usize) -> Result<Option<String>, GrammarError> {
        Ok(match alternative {
            Alternative::Null => Some("\"null\"".to_owned()),
            Alternative::Boolean => Some("/true|false/".to_owned()),
            Alternative::Number(numbers) => Some(self.number(numbers, at)?),
            Alternative::Text(texts) => self.text(texts, &[], at)?,
            Alternative::Array(arrays) => self.array(arrays, at)?,
            Alternative::Object(objects) => self.object(objects)?,
            Alternative::Values(values) => self.values(values).into_iter().next(),
        })
    }

    fn number(&mut self, numbers: &NumberSet, at: usize) -> Result<String, GrammarError> {
        match numbers.lexeme().map_err(|message| schema_error(self.sets.document.get(at).1, message))? {
            NumberForm::All(all) => Ok(self.terminal(&all.into_iter().map(Condition::matches).collect::<Vec<_>>())),
            NumberForm::Steps(mut schema) => {
                schema["x-guidance"] = serde_json::json!({"whitespace_pattern": JSON_SPACE});
                Ok(format!("%json {schema}"))
            }
        }
    }

    /// Returns a terminal for texts, except those in `but`. Returns `None` if no texts remain.
    fn text(&mut self, texts: &TextSet, but: &[String], at: usize) -> Result<Option<String>, GrammarError> {
        match texts.is_empty() {
            Some(true) => return Ok(None),
            Some(false) => {}
            None => {
                let message =
                    "it takes too long to check whether any text satisfies its patterns; use a simpler pattern";
                return Err(schema_error(self.sets.document.get(at).1, message.to_owned()));
            }
        }
        let quoted = |regex: &str| format!("\\x22(?:{regex})\\x22");
        let mut all = Vec::new();
        for pattern in texts.patterns.iter().filter(|pattern| pattern.holds) {
            all.push(Condition::matches(quoted(&pattern.quoted)));
        }
        if all.is_empty() || texts.min > 0 || texts.max.is_some() {
            all.push(Condition::matches(quoted(&text::length_regex(texts.min, texts.max, true))));
        }
        for pattern in texts.patterns.iter().filter(|pattern| !pattern.holds) {
            all.push(Condition::differs(quoted(&pattern.quoted)));
        }
        let but: Vec<String> = texts.excluded.iter().chain(but).map(|text| text::literal(text, true)).collect();
        if !but.is_empty() {
            all.push(Condition::differs(quoted(&but.join("|"))));
        }
        Ok(Some(self.terminal(&all)))
    }

    fn array(&mut self, arrays: &ArraySet, at: usize) -> Result<Option<String>, GrammarError> {
        let Some(layout) = self.sets.array_layout(arrays, &mut true)? else { return Ok(None) };
        let refuse = |writer: &Writer<'_>, keyword: &str, message: String| {
            Err(schema_error(&format!("{}/{keyword}", writer.sets.document.get(at).1), message))
        };
        if layout.min > MAX_ITEMS {
            let message = format!("a minItems of {} is not supported; the largest is {MAX_ITEMS}", layout.min);
            return refuse(self, "minItems", message);
        }
        let brackets = Brackets::ARRAY;
        if arrays.is_unique && layout.max.is_none_or(|max| max > 1) {
            return match self.unique_automaton(arrays, &layout)? {
                Some(automaton) => Ok(self.automaton(&automaton, brackets)),
                None => refuse(
                    self,
                    "uniqueItems",
                    "uniqueItems is supported for items of a list of values (enum, const, boolean, null), and for at most one item".to_owned(),
                ),
            };
        }
        if !arrays.contains.is_empty() {
            return match self.contains_automaton(arrays, &layout)? {
                Some(automaton) => Ok(self.automaton(&automaton, brackets)),
                None => refuse(
                    self,
                    "contains",
                    "its items have too many combinations to be counted; use fewer contains, or smaller limits"
                        .to_owned(),
                ),
            };
        }
        if layout.prefix.is_empty() {
            let Some(rest) = &layout.rest else { return Ok(Some("\"[\" \"]\"".to_owned())) };
            let part = self.rule(rest);
            return Ok(Some(list(&part, layout.min, layout.max, brackets)));
        }
        if layout.prefix.len() > MAX_NODES {
            return refuse(
                self,
                "prefixItems",
                format!("more than {MAX_NODES} items with their own schemas are not supported"),
            );
        }
        let length = layout.prefix.len() as u64;
        let mut automaton = Automaton::default();
        for (i, state) in layout.prefix.iter().enumerate() {
            let edges = vec![(self.rule(state), i + 1)];
            automaton.nodes.push(Node { may_end: i as u64 >= layout.min, edges, ..Node::default() });
        }
        let (min, max) = (layout.min.saturating_sub(length), layout.max.map(|max| max.saturating_sub(length)));
        let repeat = layout.rest.as_ref().map(|rest| Repeat { part: self.rule(rest), min, max });
        automaton.nodes.push(Node { may_end: true, repeat, ..Node::default() });
        Ok(self.automaton(&automaton, brackets))
    }

    fn automaton(&mut self, automaton: &Automaton, brackets: Brackets) -> Option<String> {
        let prefix = format!("l{}", self.automata);
        self.automata += 1;
        automaton.write(&prefix, brackets, &mut self.lark)
    }

    /// Returns the automaton of arrays of different values from a list. The values come in the
    /// list's order, or in any order if the list is short. Returns `None` if the values are not
    /// listed.
    fn unique_automaton(&mut self, arrays: &ArraySet, layout: &ArrayLayout) -> Result<Option<Automaton>, GrammarError> {
        let Some(rest) = layout.rest.as_ref().filter(|_| layout.prefix.is_empty() && arrays.contains.is_empty()) else {
            return Ok(None);
        };
        let set = self.sets.state(rest)?;
        let mut values = Vec::new();
        for alternative in set.alternatives.iter() {
            match alternative {
                Alternative::Values(own) => values.extend(own.iter().cloned()),
                Alternative::Null => values.push(ExactValue::from_value(&Value::Null)),
                Alternative::Boolean => {
                    values.extend([true, false].map(|flag| ExactValue::from_value(&Value::Bool(flag))))
                }
                _ => return Ok(None),
            }
        }
        let mut seen = std::collections::HashSet::new();
        values.retain(|value| seen.insert(value.canonical.clone()));
        if values.len() <= MAX_PERMUTED {
            return Ok(Some(self.permutations(&values, layout)));
        }
        let max = layout.max.unwrap_or(u64::MAX).min(values.len() as u64);
        let counted = if layout.min > 0 || max < values.len() as u64 { max as usize } else { 0 };
        let width = counted + 1;
        if (values.len() + 1) * width > MAX_NODES {
            return Ok(None);
        }
        let mut automaton = Automaton::default();
        for at in 0..=values.len() {
            for count in 0..width {
                let mut node = Node { may_end: counted == 0 || count as u64 >= layout.min, ..Node::default() };
                if let Some(value) = values.get(at) {
                    let next = (count + 1).min(counted);
                    if counted == 0 || count < counted {
                        node.edges.push((self.value(&value.value), (at + 1) * width + next));
                    }
                    node.alternative_node = Some((at + 1) * width + count);
                }
                automaton.nodes.push(node);
            }
        }
        Ok(Some(automaton))
    }

    /// Returns the automaton of arrays of different values in any order. It has a node for each
    /// subset of values that may be written already.
    fn permutations(&mut self, values: &[ExactValue], layout: &ArrayLayout) -> Automaton {
        let parts: Vec<String> = values.iter().map(|value| self.value(&value.value)).collect();
        let mut automaton = Automaton::default();
        for written in 0usize..1 << parts.len() {
            let count = u64::from(written.count_ones());
            let mut node = Node { may_end: count >= layout.min, ..Node::default() };
            if layout.max.is_none_or(|max| count < max) {
                let left = parts.iter().enumerate().filter(|(at, _)| written >> at & 1 == 0);
                node.edges.extend(left.map(|(at, part)| (part.clone(), written | 1 << at)));
            }
            automaton.nodes.push(node);
        }
        automaton
    }

    /// Returns the automaton of arrays with enough items that satisfy each `contains`. Returns
    /// `None` if the counts need too many nodes.
    fn contains_automaton(
        &mut self,
        arrays: &ArraySet,
        layout: &ArrayLayout,
    ) -> Result<Option<Automaton>, GrammarError> {
        let length = layout.prefix.len().max(layout.min as usize).max(layout.max.unwrap_or(0).min(1 << 20) as usize);
        let caps: Vec<usize> =
            arrays.contains.iter().map(|contains| contains.max.unwrap_or(contains.min).min(1 << 20) as usize).collect();
        let count: Option<usize> =
            caps.iter().try_fold(length + 1, |all, cap| all.checked_mul(cap + 1).filter(|all| *all <= MAX_NODES));
        let Some(count) = count.filter(|_| caps.len() <= MAX_CONTAINS) else { return Ok(None) };
        let mut automaton = Automaton::default();
        for number in 0..count {
            let (at, mut rest) = (number % (length + 1), number / (length + 1));
            let counts: Vec<usize> = caps
                .iter()
                .map(|cap| {
                    let own = rest % (cap + 1);
                    rest /= cap + 1;
                    own
                })
                .collect();
            let is_met = arrays.contains.iter().zip(&counts).all(|(contains, count)| *count as u64 >= contains.min);
            let mut node = Node { may_end: is_met && at as u64 >= layout.min, ..Node::default() };
            let state = layout.prefix.get(at).or(layout.rest.as_ref());
            let may_follow = layout.max.is_none_or(|max| (at as u64) < max);
            if let Some(state) = state.filter(|_| may_follow) {
                let next = (at + 1).min(length);
                for choice in 0..1u32 << caps.len() {
                    if let Some((part, counts)) = self.item_with_choice(arrays, state, &counts, &caps, choice)? {
                        let to = counts.iter().zip(&caps).rev().fold(0, |all, (count, cap)| all * (cap + 1) + count);
                        let to = to * (length + 1) + next;
                        match to == number {
                            // An edge from a node to itself is written as a repetition.
                            true => node.repeat = Some(Repeat { part, min: 0, max: None }),
                            false => node.edges.push((part, to)),
                        }
                    }
                }
            }
            automaton.nodes.push(node);
        }
        Ok(Some(automaton))
    }

    /// Returns an item that satisfies the chosen `contains`, and the new counts for all `contains`.
    fn item_with_choice(
        &mut self,
        arrays: &ArraySet,
        state: &Conjunction,
        counts: &[usize],
        caps: &[usize],
        choice: u32,
    ) -> Result<Option<(String, Vec<usize>)>, GrammarError> {
        let (mut state, mut counts) = (state.clone(), counts.to_vec());
        for (i, contains) in arrays.contains.iter().enumerate() {
            if choice >> i & 1 == 1 {
                if counts[i] == caps[i] {
                    return Ok(None);
                }
                counts[i] += 1;
                state.insert(contains.item);
            } else if contains.max.is_some() {
                state.insert(contains.item.negate());
            }
        }
        Ok(match self.sets.content(&state)? {
            Content::Some => Some((self.rule(&state), counts)),
            Content::None { .. } => None,
        })
    }

    fn object(&mut self, objects: &ObjectSet) -> Result<Option<String>, GrammarError> {
        let Some(layout) = self.sets.object_layout(objects, &mut true)? else { return Ok(None) };
        let extra = self.extra(&layout)?;
        let required = layout.named.iter().filter(|named| named.is_required).count();
        let is_counted = layout.min > required as u64
            || layout.max.is_some_and(|max| !extra.is_empty() || max < layout.named.len() as u64);
        let width = match (is_counted, layout.max) {
            (false, _) => 1,
            (true, Some(max)) => max.saturating_add(1),
            (true, None) => layout.min + 1,
        };
        let optional = layout.named.len() - required;
        let nodes = (layout.named.len() as u64 + 1).saturating_mul(width);
        if optional == 0 && required > 0 && !is_counted || optional > MAX_ORDERED || nodes > MAX_NODES as u64 {
            return self.unordered_members(&layout, &extra);
        }
        if layout.named.is_empty() {
            return Ok(match extra.as_str() {
                "" if layout.min > 0 => None,
                "" => Some("\"{\" \"}\"".to_owned()),
                extra => Some(list(extra, layout.min, layout.max, Brackets::OBJECT)),
            });
        }
        let automaton = self.ordered_members(&layout, &extra, is_counted, width as usize);
        Ok(self.automaton(&automaton, Brackets::OBJECT))
    }

    /// Writes a rule for the members whose names are not listed. Returns the rule's name, or an
    /// empty text if the object cannot have such members.
    fn extra(&mut self, layout: &ObjectLayout) -> Result<String, GrammarError> {
        let mut all = Vec::new();
        for region in &layout.regions {
            let at = region.state.iter().next().map_or(0, |literal| literal.subschema);
            let but: Vec<String> =
                layout.excluded_names.iter().filter(|name| region.names.has(name) != Some(false)).cloned().collect();
            if let Some(key) = self.text(&region.names, &but, at)? {
                all.push(format!("{key} \":\" {}", self.rule(&region.state)));
                self.is_narrow |= region.is_narrow;
            }
        }
        if all.is_empty() {
            return Ok(String::new());
        }
        Ok(self.helper(&all))
    }

    /// Writes a rule with these alternatives, and returns its name.
    fn helper(&mut self, all: &[String]) -> String {
        let name = format!("e{}", self.automata);
        self.automata += 1;
        let _ = writeln!(self.lark, "{name}: {}", all.join(" | "));
        name
    }

    /// Returns the automaton of members that come in the schema's order, with other members after
    /// them.
    ///
    /// The nodes form a grid with a column for each number of members. Each named member has a row.
    /// The row `length` follows the named members if the last one was skipped. The row `length + 1`
    /// is the end of the object, where other members repeat.
    fn ordered_members(&mut self, layout: &ObjectLayout, extra: &str, is_counted: bool, width: usize) -> Automaton {
        let mut automaton = Automaton::default();
        let length = layout.named.len();
        let is_enough = |count: usize| !is_counted || count as u64 >= layout.min;
        let is_full = |count: usize| is_counted && layout.max.is_some_and(|max| count as u64 >= max);
        let next = |count: usize| (count + 1).min(width - 1);
        for (at, NamedMember { name, state, is_required }) in layout.named.iter().enumerate() {
            let part = format!("{} \":\" {}", key(name), self.rule(state));
            let is_over = !layout.named[at..].iter().any(|named| named.is_required);
            let row = if at + 1 == length { length + 1 } else { at + 1 };
            for count in 0..width {
                let edges = if is_full(count) { Vec::new() } else { vec![(part.clone(), row * width + next(count))] };
                let alternative_node = (!is_required).then_some((at + 1) * width + count);
                automaton.nodes.push(Node {
                    may_end: is_over && is_enough(count),
                    edges,
                    alternative_node,
                    ..Node::default()
                });
            }
        }
        for count in 0..width {
            let is_open = !extra.is_empty() && !is_full(count);
            let edges = if is_open { vec![(extra.to_owned(), (length + 1) * width + next(count))] } else { Vec::new() };
            automaton.nodes.push(Node { edges, ..Node::default() });
        }
        for count in 0..width {
            let (min, max) = match is_counted {
                true => {
                    (layout.min.saturating_sub(count as u64), layout.max.map(|max| max.saturating_sub(count as u64)))
                }
                false => (0, None),
            };
            let repeat = (!extra.is_empty()).then(|| Repeat { part: extra.to_owned(), min, max });
            automaton.nodes.push(Node { may_end: repeat.is_some() || is_enough(count), repeat, ..Node::default() });
        }
        automaton
    }

    /// Returns a fragment of required members in the schema's order, followed by all others in any
    /// order.
    fn unordered_members(&mut self, layout: &ObjectLayout, extra: &str) -> Result<Option<String>, GrammarError> {
        let mut begin = Vec::new();
        let mut classes: Vec<(String, Vec<String>)> = Vec::new();
        let mut numbers: HashMap<String, usize> = HashMap::new();
        for named in &layout.named {
            let rule = self.rule(&named.state);
            if named.is_required {
                begin.push(format!("{} \":\" {rule}", key(&named.name)));
                continue;
            }
            let at = *numbers.entry(rule.clone()).or_insert(classes.len());
            if at == classes.len() {
                classes.push((rule, Vec::new()));
            }
            classes[at].1.push(text::literal(&named.name, true));
        }
        let mut any = Vec::new();
        for (rule, names) in &classes {
            let key = self.terminal(&[Condition::matches(format!("\\x22(?:{})\\x22", names.join("|")))]);
            any.push(format!("{key} \":\" {rule}"));
        }
        self.is_narrow |= !any.is_empty();
        any.extend((!extra.is_empty()).then(|| extra.to_owned()));
        let count = begin.len() as u64;
        let (min, mut max) = (layout.min.saturating_sub(count), layout.max.map(|max| max.saturating_sub(count)));
        if extra.is_empty() {
            // Without other members, the number of listed names also limits the count.
            let named = (layout.named.len() as u64).saturating_sub(count);
            max = Some(max.unwrap_or(named).min(named));
        }
        if any.is_empty() {
            return Ok((min == 0).then(|| format!("\"{{\" {} \"}}\"", begin.join(" \",\" "))));
        }
        let any = self.helper(&any);
        if begin.is_empty() {
            return Ok(Some(list(&any, min, max, Brackets::OBJECT)));
        }
        let more = super::automaton::repeat(&format!("\",\" {any}"), min, max);
        Ok(Some(format!("\"{{\" {} {more} \"}}\"", begin.join(" \",\" "))))
    }
}

/// Returns the lexeme for a key.
fn key(name: &str) -> String {
    format!("/\\x22{}\\x22/", text::literal(name, true))
}

/// Returns an expression for a value that is neither an array nor an object.
fn scalar_regex(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\\x22{}\\x22", text::literal(text, true)),
        Value::Number(number) => {
            let own = text::literal(&number.to_string(), false);
            match number.as_f64().filter(|value| number.is_f64() && value.fract() == 0.0 && value.abs() < 1e15) {
                Some(value) => format!("(?:{own}|{})", text::literal(&format!("{value:.0}"), false)),
                None => own,
            }
        }
        other => other.to_string(),
    }
}
