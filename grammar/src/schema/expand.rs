//! Expansion of subschemas to sets of values.
//!
//! A set is a list of [`Alternative`]s, each of one type. `allOf` and `$ref` intersect sets, and
//! `anyOf` unites them. `oneOf`, `not` and `if` need complements, which [`super::negate`] computes.
//! If a complement cannot be expressed, the set is smaller than its subschema, and
//! [`ValueSet::is_exact`] is false. A set is never larger than its subschema.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::alternative::{
    Alternative, ArraySet, Conjunction, Contains, Content, ExactValue, Items, Literal, Members, ObjectSet, TextSet,
    smaller,
};
use super::decimal::Decimal;
use super::document::{Document, SubschemaId};
use super::keywords::{self, count, schema_error};
use super::number::Bound;
use super::text::Pattern;
use super::{formats, text};
use crate::GrammarError;

/// Max alternatives in the set of one subschema.
const MAX_ALTERNATIVES: usize = 4096;
/// Max number of intersections of alternatives that one schema may need.
const MAX_WORK: usize = 2_000_000;
/// Max nesting of subschemas.
const MAX_NEST: usize = 400;

/// Set of values, as a list of alternatives.
#[derive(Clone, Debug)]
pub(super) struct ValueSet {
    pub alternatives: Rc<Vec<Alternative>>,
    /// Whether the set has all values that its subschema allows.
    pub is_exact: bool,
}

impl ValueSet {
    pub fn new(alternatives: Vec<Alternative>, is_exact: bool) -> ValueSet {
        ValueSet { alternatives: Rc::new(alternatives), is_exact }
    }
}

/// Sets of values of a document's subschemas.
#[derive(Debug)]
pub(super) struct Sets<'s> {
    pub document: Document<'s>,
    expanded: HashMap<Literal, ValueSet>,
    /// Subschemas whose sets are being computed.
    in_progress: HashSet<Literal>,
    /// Whether a subschema in `in_progress` was met again since this flag was last cleared.
    pub(super) met_in_progress: bool,
    work: usize,
    /// The first subschema whose complement could not be expressed.
    pub inexpressible: Option<(String, String)>,
    pub(super) contents: HashMap<Conjunction, Content>,
    pub(super) contents_open: HashSet<Conjunction>,
    /// Whether a conjunction in `contents_open` was met again since this flag was last cleared.
    pub(super) met_content: bool,
}

impl<'s> Sets<'s> {
    pub fn new(schema: &'s Value) -> Sets<'s> {
        Sets {
            document: Document::new(schema),
            expanded: HashMap::new(),
            in_progress: HashSet::new(),
            met_in_progress: false,
            work: 0,
            inexpressible: None,
            contents: HashMap::new(),
            contents_open: HashSet::new(),
            met_content: false,
        }
    }

    /// Counts work, and refuses a schema that takes too much of it.
    pub fn work(&mut self, amount: usize) -> Result<(), GrammarError> {
        self.work += amount;
        if self.work > MAX_WORK {
            return Err(schema_error(
                "#",
                "its parts have too many combinations; use fewer alternatives (anyOf, oneOf)".to_owned(),
            ));
        }
        Ok(())
    }

    /// Refuses a schema whose nesting is too deep for the stack.
    pub fn check_depth(&self, depth: usize) -> Result<(), GrammarError> {
        match depth > MAX_NEST {
            true => Err(schema_error(
                "#",
                format!("its parts and references nest more than {MAX_NEST} deep; use fewer levels"),
            )),
            false => Ok(()),
        }
    }

    /// Returns the values that satisfy all subschemas of a conjunction.
    pub fn state(&mut self, state: &Conjunction) -> Result<ValueSet, GrammarError> {
        let mut all = ValueSet::new(Alternative::all(), true);
        for (i, literal) in state.iter().enumerate() {
            let set = self.literal(*literal)?;
            all = if i == 0 { set } else { self.intersection(&all, &set, *literal)? };
        }
        Ok(all)
    }

    /// Returns the values that satisfy a literal.
    pub fn literal(&mut self, literal: Literal) -> Result<ValueSet, GrammarError> {
        if let Some(set) = self.expanded.get(&literal) {
            return Ok(set.clone());
        }
        self.check_depth(self.in_progress.len())?;
        if !self.in_progress.insert(literal) {
            // A schema that refers only to itself allows no value.
            self.met_in_progress = true;
            return Ok(ValueSet::new(Vec::new(), literal.holds));
        }
        let before = std::mem::replace(&mut self.met_in_progress, false);
        let set = if literal.holds { self.positive(literal.subschema) } else { self.negative(literal.subschema) };
        self.in_progress.remove(&literal);
        let set = set?;
        if !self.met_in_progress || self.in_progress.is_empty() {
            self.expanded.insert(literal, set.clone());
        }
        self.met_in_progress |= before;
        Ok(set)
    }

    /// Returns the values in both sets. A listed value is omitted if it is not known to be in the
    /// other set. The result is then not exact.
    pub fn intersection(&mut self, a: &ValueSet, b: &ValueSet, at: Literal) -> Result<ValueSet, GrammarError> {
        let mut is_exact = a.is_exact && b.is_exact;
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        self.work(a.alternatives.len() * b.alternatives.len())?;
        // Listed values keep the order of their list.
        for (one, others) in [(a, b), (b, a)] {
            for values in one.alternatives.iter().filter_map(Alternative::values) {
                let mut kept = Vec::new();
                for value in values {
                    match self.any_has(others, &value.value)? {
                        Some(true) => kept.push(value.clone()),
                        Some(false) => {}
                        None => is_exact = false,
                    }
                }
                let both = (!kept.is_empty()).then_some(Alternative::Values(kept));
                all.extend(both.filter(|both| seen.insert(both.clone())));
            }
        }
        for one in a.alternatives.iter().filter(|one| one.values().is_none()) {
            for other in b.alternatives.iter().filter(|other| other.values().is_none()) {
                all.extend(one.and(other).filter(|both| seen.insert(both.clone())));
            }
        }
        if all.len() > MAX_ALTERNATIVES {
            let pointer = self.document.get(at.subschema).1.to_owned();
            return Err(schema_error(
                &pointer,
                format!(
                    "this part of the schema has more than {MAX_ALTERNATIVES} combinations of alternatives; use fewer"
                ),
            ));
        }
        Ok(ValueSet::new(all, is_exact))
    }

    /// Returns the values that are in any of the sets.
    pub fn union_of(&mut self, sets: Vec<ValueSet>, at: SubschemaId) -> Result<ValueSet, GrammarError> {
        let is_exact = sets.iter().all(|set| set.is_exact);
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        for set in sets {
            self.work(set.alternatives.len())?;
            all.extend(set.alternatives.iter().filter(|one| seen.insert((*one).clone())).cloned());
        }
        if all.len() > MAX_ALTERNATIVES {
            let pointer = self.document.get(at).1.to_owned();
            return Err(schema_error(
                &pointer,
                format!("this part of the schema has more than {MAX_ALTERNATIVES} alternatives; use fewer"),
            ));
        }
        Ok(ValueSet::new(all, is_exact))
    }

    fn positive(&mut self, subschema: SubschemaId) -> Result<ValueSet, GrammarError> {
        let (value, pointer) = self.document.get(subschema);
        let members = match value {
            Value::Bool(true) => return Ok(ValueSet::new(Alternative::all(), true)),
            Value::Bool(false) => return Ok(ValueSet::new(Vec::new(), true)),
            Value::Object(members) => members,
            other => {
                let message =
                    format!("{} is not a schema; expected an object, true or false", keywords::value_excerpt(other));
                return Err(schema_error(pointer, message));
            }
        };
        keywords::check(members, pointer)?;
        if !self.document.has_siblings && members.contains_key("$ref") {
            return self.reference(subschema, members);
        }
        let mut alternatives = type_alternatives(members);
        for alternative in &mut alternatives {
            match alternative {
                Alternative::Number(numbers) => number_keywords(members, numbers),
                Alternative::Text(texts) => text_keywords(members, texts, self.document.get(subschema).1)?,
                Alternative::Array(arrays) => self.array_keywords(subschema, members, arrays),
                Alternative::Object(objects) => self.object_keywords(subschema, members, objects)?,
                _ => {}
            }
        }
        alternatives.retain(|alternative| !alternative.has_no_room());
        let mut set = ValueSet::new(alternatives, true);
        let values = values(members).map(|values| ValueSet::new(vec![Alternative::Values(values)], true));
        // A list of values has no record of evaluated members. It is therefore intersected after
        // `with_unevaluated`.
        let is_last = members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems");
        if let Some(values) = values.as_ref().filter(|_| !is_last) {
            set = self.intersection(values, &set, Literal::positive(subschema))?;
        }
        set = self.with_applicators(subschema, members, set)?;
        set = self.with_unevaluated(subschema, members, set)?;
        match values.filter(|_| is_last) {
            Some(values) => self.intersection(&values, &set, Literal::positive(subschema)),
            None => Ok(set),
        }
    }

    /// Intersects a set with the sets of the subschemas that apply to the same value.
    fn with_applicators(
        &mut self,
        subschema: SubschemaId,
        members: &'s Map<String, Value>,
        mut set: ValueSet,
    ) -> Result<ValueSet, GrammarError> {
        let at = Literal::positive(subschema);
        if ["$ref", "$dynamicRef", "$recursiveRef"].iter().any(|name| members.contains_key(*name)) {
            let other = self.reference(subschema, members)?;
            set = self.intersection(&set, &other, at)?;
        }
        for (i, part) in list(members, "allOf").iter().enumerate() {
            let part = self.document.nested_id(subschema, "allOf", &i.to_string(), part);
            let other = self.literal(Literal::positive(part))?;
            set = self.intersection(&set, &other, at)?;
        }
        if members.contains_key("anyOf") {
            let mut sets = Vec::new();
            for part in self.parts(subschema, members, "anyOf") {
                sets.push(self.literal(part)?);
            }
            let other = self.union_of(sets, subschema)?;
            set = self.intersection(&set, &other, at)?;
        }
        if members.contains_key("oneOf") {
            let other = self.one_of(subschema, members)?;
            set = self.intersection(&set, &other, at)?;
        }
        if let Some(value) = members.get("not") {
            let part = self.document.member(subschema, "not", value);
            let other = self.literal(Literal::positive(part).negate())?;
            set = self.intersection(&set, &other, at)?;
        }
        if members.contains_key("if") {
            let other = self.conditional(subschema, members, true)?;
            set = self.intersection(&set, &other, at)?;
        }
        for other in self.dependent(subschema, members, true)? {
            set = self.intersection(&set, &other, at)?;
        }
        Ok(set)
    }

    /// Returns the subschemas in the list of a keyword.
    pub fn parts(&mut self, subschema: SubschemaId, members: &'s Map<String, Value>, keyword: &str) -> Vec<Literal> {
        let all = list(members, keyword).iter().enumerate();
        all.map(|(i, part)| Literal::positive(self.document.nested_id(subschema, keyword, &i.to_string(), part)))
            .collect()
    }

    /// Returns the subschema to which a schema refers.
    pub fn target(
        &mut self,
        subschema: SubschemaId,
        members: &Map<String, Value>,
    ) -> Result<SubschemaId, GrammarError> {
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let Some(reference) = members.get(keyword).and_then(Value::as_str) else { continue };
            let found = match keyword {
                "$dynamicRef" => self.document.find_dynamic(subschema, reference),
                _ => self.document.find(subschema, reference),
            };
            return found
                .map_err(|message| schema_error(&format!("{}/{keyword}", self.document.get(subschema).1), message));
        }
        Ok(subschema)
    }

    fn reference(&mut self, subschema: SubschemaId, members: &Map<String, Value>) -> Result<ValueSet, GrammarError> {
        let target = self.target(subschema, members)?;
        self.literal(Literal::positive(target))
    }

    /// Returns the values that exactly one subschema of `oneOf` allows.
    fn one_of(&mut self, subschema: SubschemaId, members: &'s Map<String, Value>) -> Result<ValueSet, GrammarError> {
        let parts = self.parts(subschema, members, "oneOf");
        let mut sets = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let mut set = self.literal(*part)?;
            for (j, other) in parts.iter().enumerate() {
                if i == j || set.alternatives.is_empty() || self.is_empty(&Conjunction::from([*part, *other]))? {
                    continue;
                }
                let without = self.literal(other.negate())?;
                set = self.intersection(&set, &without, *part)?;
            }
            sets.push(set);
        }
        self.union_of(sets, subschema)
    }

    /// Returns the values that satisfy `if`, `then` and `else` together. If `holds` is false,
    /// returns the complement.
    pub fn conditional(
        &mut self,
        subschema: SubschemaId,
        members: &'s Map<String, Value>,
        holds: bool,
    ) -> Result<ValueSet, GrammarError> {
        let mut sets = Vec::new();
        let condition = members.get("if").map(|value| self.document.member(subschema, "if", value));
        let Some(condition) = condition else {
            return Ok(ValueSet::new(if holds { Alternative::all() } else { Vec::new() }, true));
        };
        for (keyword, is_met) in [("then", true), ("else", false)] {
            let head = Literal { subschema: condition, holds: is_met };
            match members.get(keyword) {
                Some(value) => {
                    let branch = Literal { subschema: self.document.member(subschema, keyword, value), holds };
                    let (head, branch) = (self.literal(head)?, self.literal(branch)?);
                    sets.push(self.intersection(&head, &branch, Literal::positive(subschema))?);
                }
                None if holds => sets.push(self.literal(head)?),
                None => {}
            }
        }
        self.union_of(sets, subschema)
    }

    /// Returns a set for each dependency. It has the values that satisfy the dependency, or those
    /// that violate it if `holds` is false.
    pub fn dependent(
        &mut self,
        subschema: SubschemaId,
        members: &'s Map<String, Value>,
        holds: bool,
    ) -> Result<Vec<ValueSet>, GrammarError> {
        let mut all = Vec::new();
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let Some(Value::Object(dependencies)) = members.get(keyword) else { continue };
            for (name, value) in dependencies {
                let here = ValueSet::new(vec![with_member(name)], true);
                let consequence = match value {
                    Value::Array(names) => {
                        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
                        match holds {
                            true => {
                                let required = names.into_iter().map(str::to_owned).collect();
                                let object = Alternative::Object(ObjectSet { required, ..ObjectSet::default() });
                                ValueSet::new(vec![object], true)
                            }
                            false => self.without_one_of(&names)?,
                        }
                    }
                    value => {
                        let part = self.document.nested_id(subschema, keyword, name, value);
                        self.literal(Literal { subschema: part, holds })?
                    }
                };
                let met = self.intersection(&here, &consequence, Literal::positive(subschema))?;
                let set = match holds {
                    true => {
                        let absent = self.without_member(name)?;
                        self.union_of(vec![met, absent], subschema)?
                    }
                    false => met,
                };
                all.push(set);
            }
        }
        Ok(all)
    }

    /// Returns all values except the objects that have a member with this name.
    fn without_member(&mut self, name: &str) -> Result<ValueSet, GrammarError> {
        let mut all = Alternative::all();
        all.pop();
        let objects = self.without_one_of(&[name])?;
        all.extend(objects.alternatives.iter().cloned());
        Ok(ValueSet::new(all, true))
    }

    /// Returns the objects that lack at least one of the members with these names.
    pub fn without_one_of(&mut self, names: &[&str]) -> Result<ValueSet, GrammarError> {
        let never = self.never_literal();
        let lacks = |name: &&str| {
            let named = Rc::new(vec![((*name).to_owned(), never)]);
            let members = Members { named, patterned: Vec::new(), rest: None, evaluates: false };
            Alternative::Object(ObjectSet { members: vec![members], ..ObjectSet::default() })
        };
        Ok(ValueSet::new(names.iter().map(lacks).collect(), true))
    }

    /// Returns a subschema that allows no value.
    pub fn never_literal(&mut self) -> Literal {
        static FALSE: Value = Value::Bool(false);
        Literal::positive(self.document.subschema_id(&FALSE, "#".to_owned()))
    }

    fn array_keywords(&mut self, subschema: SubschemaId, members: &'s Map<String, Value>, arrays: &mut ArraySet) {
        arrays.min = number(members, "minItems").unwrap_or(0);
        arrays.max = number(members, "maxItems");
        arrays.is_unique = members.get("uniqueItems") == Some(&Value::Bool(true));
        let (prefix, rest) = match members.get("items") {
            Some(Value::Array(_)) => (self.parts(subschema, members, "items"), Some("additionalItems")),
            _ => (self.parts(subschema, members, "prefixItems"), Some("items")),
        };
        let rest = rest.and_then(|keyword| Some((keyword, members.get(keyword)?)));
        let rest = rest.map(|(keyword, value)| Literal::positive(self.document.member(subschema, keyword, value)));
        if !prefix.is_empty() || rest.is_some() {
            arrays.items.push(Items { prefix, rest, evaluates: true });
        }
        if let Some(value) = members.get("contains") {
            let item = Literal::positive(self.document.member(subschema, "contains", value));
            let (min, max) = (number(members, "minContains").unwrap_or(1), number(members, "maxContains"));
            if min > 0 || max.is_some() {
                arrays.contains.push(Contains { item, min, max });
            }
        }
    }

    fn object_keywords(
        &mut self,
        subschema: SubschemaId,
        members: &'s Map<String, Value>,
        objects: &mut ObjectSet,
    ) -> Result<(), GrammarError> {
        objects.min = number(members, "minProperties").unwrap_or(0);
        objects.max = number(members, "maxProperties");
        let required = list(members, "required").iter().filter_map(Value::as_str);
        objects.required = required.map(str::to_owned).collect();
        if let Some(value) = members.get("propertyNames") {
            objects.names.push(Literal::positive(self.document.member(subschema, "propertyNames", value)));
        }
        let mut group = Members { named: Rc::default(), patterned: Vec::new(), rest: None, evaluates: true };
        if let Some(Value::Object(named)) = members.get("properties") {
            let subschema = |(name, value): (&'s String, &'s Value)| {
                (name.clone(), Literal::positive(self.document.nested_id(subschema, "properties", name, value)))
            };
            group.named = Rc::new(named.iter().map(subschema).collect());
        }
        if let Some(Value::Object(patterned)) = members.get("patternProperties") {
            for (source, value) in patterned {
                let inner = self.document.nested_id(subschema, "patternProperties", source, value);
                let patterns = Pattern::parse_all(source).map_err(|message| {
                    schema_error(
                        self.document.get(inner).1,
                        format!("the pattern {source:?} of names is not supported: {message}"),
                    )
                })?;
                let [pattern] = patterns.as_slice() else {
                    let message = format!("the pattern {source:?} of names is not supported: it has lookaheads");
                    return Err(schema_error(self.document.get(inner).1, message));
                };
                group.patterned.push((pattern.clone(), source.clone(), Literal::positive(inner)));
            }
        }
        if let Some(value) = members.get("additionalProperties") {
            group.rest = Some(Literal::positive(self.document.member(subschema, "additionalProperties", value)));
        }
        if !group.named.is_empty() || !group.patterned.is_empty() || group.rest.is_some() {
            objects.members.push(group);
        }
        Ok(())
    }

    /// Adds `unevaluatedProperties` and `unevaluatedItems` to each alternative. The effect of both
    /// keywords depends on the subschemas that were chosen for the alternative.
    fn with_unevaluated(
        &mut self,
        subschema: SubschemaId,
        members: &'s Map<String, Value>,
        set: ValueSet,
    ) -> Result<ValueSet, GrammarError> {
        let mut literal = |keyword: &str| {
            let value = members.get(keyword)?;
            Some(Literal::positive(self.document.member(subschema, keyword, value)))
        };
        let (properties, items) = (literal("unevaluatedProperties"), literal("unevaluatedItems"));
        if properties.is_none() && items.is_none() {
            return Ok(set);
        }
        static TRUE: Value = Value::Bool(true);
        let any = Literal::positive(self.document.subschema_id(&TRUE, "#".to_owned()));
        let mut all = Vec::clone(&set.alternatives);
        for alternative in &mut all {
            match alternative {
                Alternative::Object(objects) => {
                    let Some(rest) = properties else { continue };
                    let seen = || objects.members.iter().filter(|members| members.evaluates);
                    if seen().any(|members| members.rest.is_some()) {
                        continue;
                    }
                    let named = seen().flat_map(|members| members.named.iter()).map(|(name, _)| (name.clone(), any));
                    let patterned = seen().flat_map(|members| &members.patterned);
                    let patterned = patterned.map(|(pattern, source, _)| (pattern.clone(), source.clone(), any));
                    let (named, patterned) = (Rc::new(named.collect()), patterned.collect());
                    objects.members.push(Members { named, patterned, rest: Some(rest), evaluates: true });
                }
                Alternative::Array(arrays) => {
                    let Some(rest) = items else { continue };
                    let seen = || arrays.items.iter().filter(|items| items.evaluates);
                    if seen().any(|items| items.rest.is_some()) {
                        continue;
                    }
                    let length = seen().map(|items| items.prefix.len()).max().unwrap_or(0);
                    arrays.items.push(Items { prefix: vec![any; length], rest: Some(rest), evaluates: true });
                }
                Alternative::Values(values) => {
                    // Keywords of other subschemas may not have evaluated any part of the listed
                    // values.
                    let mut kept = Vec::new();
                    for value in values.iter() {
                        if self.all_allow(properties, items, &value.value)? {
                            kept.push(value.clone());
                        }
                    }
                    *values = kept;
                }
                _ => {}
            }
        }
        all.retain(|alternative| !alternative.has_no_room());
        // Subschemas that were not chosen may hold, too, and `contains` marks items as evaluated.
        // The set is therefore not exact.
        Ok(ValueSet::new(all, false))
    }

    /// Returns whether a value's parts are all allowed: members by one subschema, and items by the
    /// other.
    fn all_allow(
        &mut self,
        members: Option<Literal>,
        items: Option<Literal>,
        value: &Value,
    ) -> Result<bool, GrammarError> {
        let (literal, parts): (_, Vec<&Value>) = match value {
            Value::Object(all) => (members, all.values().collect()),
            Value::Array(all) => (items, all.iter().collect()),
            _ => return Ok(true),
        };
        let Some(literal) = literal else { return Ok(true) };
        for part in parts {
            if self.allows(literal, part)? != Some(true) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether a value is in an alternative, or `None` if this is not known.
    pub fn has(&mut self, alternative: &Alternative, value: &Value) -> Result<Option<bool>, GrammarError> {
        self.work(1)?;
        Ok(match (alternative, value) {
            (Alternative::Null, Value::Null) | (Alternative::Boolean, Value::Bool(_)) => Some(true),
            (Alternative::Number(numbers), Value::Number(number)) => numbers.has(&Decimal::from_number(number)),
            (Alternative::Text(texts), Value::String(text)) => texts.has(text),
            (Alternative::Array(arrays), Value::Array(items)) => self.has_items(arrays, items)?,
            (Alternative::Object(objects), Value::Object(members)) => self.has_members(objects, members)?,
            (Alternative::Values(values), value) => Some(values.contains(&ExactValue::from_value(value))),
            _ => Some(false),
        })
    }

    /// Returns whether a literal allows a value. Returns `None` if its set is smaller than the
    /// subschema, or is still being computed.
    pub fn allows(&mut self, literal: Literal, value: &Value) -> Result<Option<bool>, GrammarError> {
        let before = std::mem::replace(&mut self.met_in_progress, false);
        let set = self.literal(literal)?;
        let is_whole = set.is_exact && !self.met_in_progress;
        self.met_in_progress |= before;
        Ok(self.any_has(&set, value)?.filter(|has| *has || is_whole))
    }

    fn any_has(&mut self, set: &ValueSet, value: &Value) -> Result<Option<bool>, GrammarError> {
        let mut any = Some(false);
        for alternative in set.alternatives.iter() {
            match self.has(alternative, value)? {
                Some(true) => return Ok(Some(true)),
                Some(false) => {}
                None => any = None,
            }
        }
        Ok(any)
    }

    fn has_items(&mut self, arrays: &ArraySet, items: &[Value]) -> Result<Option<bool>, GrammarError> {
        let length = items.len() as u64;
        if length < arrays.min || arrays.max.is_some_and(|max| length > max) {
            return Ok(Some(false));
        }
        let distinct: HashSet<String> = items.iter().map(|item| ExactValue::from_value(item).canonical).collect();
        if arrays.is_unique && distinct.len() < items.len() {
            return Ok(Some(false));
        }
        let mut all = Some(true);
        for part in &arrays.items {
            for (i, item) in items.iter().enumerate() {
                let Some(literal) = part.prefix.get(i).copied().or(part.rest) else { continue };
                match self.allows(literal, item)? {
                    Some(true) => {}
                    Some(false) => return Ok(Some(false)),
                    None => all = None,
                }
            }
        }
        for contains in &arrays.contains {
            // The first number counts the items that certainly satisfy the `contains`. The second
            // counts those that may satisfy it.
            let (mut sure, mut possible) = (0, 0);
            for item in items {
                let allowed = self.allows(contains.item, item)?;
                sure += u64::from(allowed == Some(true));
                possible += u64::from(allowed != Some(false));
            }
            let is_over = |count: u64| contains.max.is_some_and(|max| count > max);
            if possible < contains.min || is_over(sure) {
                return Ok(Some(false));
            }
            if sure < contains.min || is_over(possible) {
                all = None;
            }
        }
        Ok(all)
    }

    fn has_members(&mut self, objects: &ObjectSet, members: &Map<String, Value>) -> Result<Option<bool>, GrammarError> {
        let count = members.len() as u64;
        let is_counted = count >= objects.min && objects.max.is_none_or(|max| count <= max);
        if !is_counted || !objects.required.iter().all(|name| members.contains_key(name)) {
            return Ok(Some(false));
        }
        let mut all = Some(true);
        for (name, value) in members {
            let key = Value::from(name.as_str());
            let values = self.member_literals(objects, name)?.into_iter().map(|literal| (literal, value));
            for (literal, value) in values.chain(objects.names.iter().map(|literal| (*literal, &key))) {
                match self.allows(literal, value)? {
                    Some(true) => {}
                    Some(false) => return Ok(Some(false)),
                    None => all = None,
                }
            }
        }
        Ok(all)
    }

    /// Returns the subschemas that constrain the member with this name.
    pub fn member_literals(&mut self, objects: &ObjectSet, name: &str) -> Result<Conjunction, GrammarError> {
        let mut all = Conjunction::new();
        for group in &objects.members {
            self.work(1 + group.named.len() / 64)?;
            let mut is_seen = false;
            for (_, literal) in group.named.iter().filter(|(own, _)| own == name) {
                all.insert(*literal);
                is_seen = true;
            }
            for (pattern, _, literal) in &group.patterned {
                if self.matches(pattern, name, *literal)? {
                    all.insert(*literal);
                    is_seen = true;
                }
            }
            all.extend(group.rest.filter(|_| !is_seen));
        }
        Ok(all)
    }
}

/// Returns the value of a keyword if it is a list.
pub(super) fn list<'v>(members: &'v Map<String, Value>, keyword: &str) -> &'v [Value] {
    members.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the value of a keyword if it is a count.
pub(super) fn number(members: &Map<String, Value>, keyword: &str) -> Option<u64> {
    members.get(keyword).and_then(count)
}

/// Returns the objects that have a member with this name.
pub(super) fn with_member(name: &str) -> Alternative {
    Alternative::Object(ObjectSet { required: [name.to_owned()].into(), ..ObjectSet::default() })
}

/// Returns the values that `const` and `enum` allow.
pub(super) fn values(members: &Map<String, Value>) -> Option<Vec<ExactValue>> {
    let mut seen = HashSet::new();
    let exact = |value: &Value| ExactValue::from_value(value);
    let listed = members.get("enum").and_then(Value::as_array);
    let listed: Option<Vec<ExactValue>> =
        listed.map(|all| all.iter().map(exact).filter(|value| seen.insert(value.canonical.clone())).collect());
    match (members.get("const").map(exact), listed) {
        (Some(one), Some(all)) => Some(if all.contains(&one) { vec![one] } else { Vec::new() }),
        (Some(one), None) => Some(vec![one]),
        (None, all) => all,
    }
}

/// Returns all values of the types in `type`.
pub(super) fn type_alternatives(members: &Map<String, Value>) -> Vec<Alternative> {
    let Some(kind) = members.get("type") else { return Alternative::all() };
    let mut names: Vec<&str> = match kind {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        other => other.as_str().into_iter().collect(),
    };
    if members.get("nullable") == Some(&Value::Bool(true)) {
        names.push("null");
    }
    let mut all = Alternative::all();
    all.retain_mut(|alternative| {
        let name = match alternative {
            Alternative::Null => "null",
            Alternative::Boolean => "boolean",
            Alternative::Number(numbers) => {
                numbers.is_integer = !names.contains(&"number");
                if numbers.is_integer { "integer" } else { "number" }
            }
            Alternative::Text(_) => "string",
            Alternative::Array(_) => "array",
            _ => "object",
        };
        names.contains(&name)
    });
    all
}

/// Returns the bounds of a pair of keywords, one of them inclusive and the other exclusive. The
/// second may be a flag that makes the first exclusive.
pub(super) fn bounds(members: &Map<String, Value>, inclusive: &str, exclusive: &str) -> Vec<Bound> {
    let value = |name: &str| members.get(name).and_then(|value| value.as_number()).map(Decimal::from_number);
    let is_flagged = members.get(exclusive) == Some(&Value::Bool(true));
    let inclusive = value(inclusive).map(|value| Bound { value, is_exclusive: is_flagged });
    let exclusive = value(exclusive).map(|value| Bound { value, is_exclusive: true });
    inclusive.into_iter().chain(exclusive).collect()
}

fn number_keywords(members: &Map<String, Value>, numbers: &mut super::number::NumberSet) {
    for bound in bounds(members, "minimum", "exclusiveMinimum") {
        numbers.at_least(bound);
    }
    for bound in bounds(members, "maximum", "exclusiveMaximum") {
        numbers.at_most(bound);
    }
    let step = members.get("multipleOf").and_then(|value| value.as_number()).map(Decimal::from_number);
    numbers.steps.extend(step);
}

/// Returns the patterns of `pattern`.
pub(super) fn patterns(members: &Map<String, Value>, pointer: &str) -> Result<Vec<Pattern>, GrammarError> {
    let Some(source) = members.get("pattern").and_then(Value::as_str) else { return Ok(Vec::new()) };
    Pattern::parse_all(source)
        .map_err(|message| schema_error(&format!("{pointer}/pattern"), format!("{source:?}: {message}")))
}

/// Returns the pattern of `format`.
fn format_pattern(members: &Map<String, Value>, pointer: &str) -> Result<Option<Pattern>, GrammarError> {
    let regex = members.get("format").and_then(Value::as_str).and_then(formats::regex);
    let pattern = regex.map(|regex| Pattern::whole_match(&regex)).transpose();
    pattern.map_err(|message| schema_error(&format!("{pointer}/format"), message))
}

fn text_keywords(members: &Map<String, Value>, texts: &mut TextSet, pointer: &str) -> Result<(), GrammarError> {
    texts.min = number(members, "minLength").unwrap_or(0);
    texts.max = smaller(number(members, "maxLength"), None);
    texts.patterns.extend(patterns(members, pointer)?);
    texts.patterns.extend(format_pattern(members, pointer)?);
    texts.sources.extend(members.get("pattern").and_then(Value::as_str).map(str::to_owned));
    if texts.min > text::MAX_LENGTH {
        let message = format!("a minLength of {} is not supported; the largest is {}", texts.min, text::MAX_LENGTH);
        return Err(schema_error(&format!("{pointer}/minLength"), message));
    }
    Ok(())
}
