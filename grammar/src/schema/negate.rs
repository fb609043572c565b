//! Complements of subschemas: the sets of values that they forbid.
//!
//! A subschema forbids a value if one of its keywords forbids it. Its complement is therefore the
//! union of the keywords' complements. If a keyword's complement cannot be expressed as a set, it
//! is omitted, and the union is not exact.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::alternative::{Alternative, ArraySet, Contains, Items, Literal, Members, ObjectSet, TextSet};
use super::decimal::Decimal;
use super::document::SubschemaId;
use super::expand::{Sets, ValueSet, bounds, list, number, patterns, type_alternatives, values};
use super::number::{Bound, NumberSet};
use super::{formats, keywords};
use crate::GrammarError;

impl<'s> Sets<'s> {
    pub(super) fn negative(&mut self, subschema: SubschemaId) -> Result<ValueSet, GrammarError> {
        let (value, pointer) = self.document.get(subschema);
        let members = match value {
            Value::Bool(true) => return Ok(ValueSet::new(Vec::new(), true)),
            Value::Bool(false) => return Ok(ValueSet::new(Alternative::all(), true)),
            Value::Object(members) => members,
            // The subschema is malformed. It is refused when it is expanded.
            _ => return Ok(ValueSet::new(Vec::new(), false)),
        };
        keywords::check(members, pointer)?;
        let refers = ["$ref", "$dynamicRef", "$recursiveRef"].iter().any(|name| members.contains_key(*name));
        let mut sets = Vec::new();
        if refers {
            let target = self.target(subschema, members)?;
            sets.push(self.literal(Literal::positive(target).negate())?);
            if !self.document.has_siblings {
                return self.union_of(sets, subschema);
            }
        }
        sets.push(ValueSet::new(other_types(members), true));
        sets.extend(self.other_values(subschema, members));
        sets.push(ValueSet::new(other_numbers(members), true));
        if members.contains_key("multipleOf") {
            sets.push(self.leave_out(subschema, "multipleOf"));
        }
        sets.push(ValueSet::new(self.other_texts(subschema, members)?, true));
        // Some validators treat formats as annotations, so a text that does not have the format may
        // be valid.
        if members.get("format").and_then(Value::as_str).is_some_and(|name| formats::regex(name).is_some()) {
            sets.push(self.leave_out(subschema, "format"));
        }
        sets.push(self.other_arrays(subschema, members));
        sets.push(self.other_objects(subschema, members)?);
        for part in self.parts(subschema, members, "allOf") {
            sets.push(self.literal(part.negate())?);
        }
        if members.contains_key("anyOf") {
            let mut none = ValueSet::new(Alternative::all(), true);
            for part in self.parts(subschema, members, "anyOf") {
                let other = self.literal(part.negate())?;
                none = self.intersection(&none, &other, part)?;
            }
            sets.push(none);
        }
        if members.contains_key("oneOf") {
            sets.push(self.none_or_two(subschema, members)?);
        }
        if let Some(value) = members.get("not") {
            let part = self.document.member(subschema, "not", value);
            sets.push(self.literal(Literal::positive(part))?);
        }
        sets.push(self.conditional(subschema, members, false)?);
        sets.extend(self.dependent(subschema, members, false)?);
        if ["unevaluatedProperties", "unevaluatedItems"].iter().any(|name| members.contains_key(*name)) {
            sets.push(self.leave_out(subschema, "unevaluatedProperties"));
        }
        let set = self.union_of(sets, subschema)?;
        Ok(ValueSet::new(without_evaluation(&set), set.is_exact))
    }

    /// Returns an empty set that is not exact, and records the keyword for the error message.
    fn leave_out(&mut self, subschema: SubschemaId, keyword: &str) -> ValueSet {
        let pointer = self.document.get(subschema).1.to_owned();
        self.inexpressible.get_or_insert((pointer, keyword.to_owned()));
        ValueSet::new(Vec::new(), false)
    }

    /// Returns the values that `const` and `enum` do not list.
    fn other_values(&mut self, subschema: SubschemaId, members: &Map<String, Value>) -> Option<ValueSet> {
        let listed = values(members)?;
        let mut all = Vec::new();
        let mut is_exact = true;
        let has = |value: &Value| listed.iter().any(|own| *own.value == *value);
        if !has(&Value::Null) {
            all.push(Alternative::Null);
        }
        let flags: Vec<_> = [Value::Bool(true), Value::Bool(false)]
            .iter()
            .filter(|value| !has(value))
            .map(super::alternative::ExactValue::from_value)
            .collect();
        if !flags.is_empty() {
            all.push(Alternative::Values(flags));
        }
        let mut points: Vec<Decimal> =
            listed.iter().filter_map(|value| value.value.as_number().map(Decimal::from_number)).collect();
        points.sort_by(Decimal::compare);
        // This loop adds the ranges of numbers between the listed ones.
        let mut bound: Option<Bound> = None;
        for point in points {
            let end = Bound { value: point, is_exclusive: true };
            all.push(Alternative::Number(NumberSet {
                min: bound.replace(end.clone()),
                max: Some(end),
                ..NumberSet::default()
            }));
        }
        all.push(Alternative::Number(NumberSet { min: bound, ..NumberSet::default() }));
        let excluded = listed.iter().filter_map(|value| value.value.as_str().map(str::to_owned)).collect();
        all.push(Alternative::Text(TextSet { excluded, ..TextSet::default() }));
        for (is_type, other) in [
            (listed.iter().any(|value| value.value.is_array()), Alternative::Array(ArraySet::default())),
            (listed.iter().any(|value| value.value.is_object()), Alternative::Object(ObjectSet::default())),
        ] {
            match is_type {
                false => all.push(other),
                true => {
                    is_exact = false;
                    self.leave_out(subschema, "enum");
                }
            }
        }
        all.retain(|alternative| !alternative.has_no_room());
        Some(ValueSet::new(all, is_exact))
    }

    fn other_texts(
        &mut self,
        subschema: SubschemaId,
        members: &Map<String, Value>,
    ) -> Result<Vec<Alternative>, GrammarError> {
        let mut all = Vec::new();
        let mut add = |texts: TextSet| all.push(Alternative::Text(texts));
        if let Some(min) = number(members, "minLength").filter(|min| *min > 0) {
            add(TextSet { max: Some(min - 1), ..TextSet::default() });
        }
        if let Some(max) = number(members, "maxLength") {
            add(TextSet { min: max.saturating_add(1), ..TextSet::default() });
        }
        for pattern in patterns(members, self.document.get(subschema).1)? {
            add(TextSet { patterns: [pattern.negate()].into(), ..TextSet::default() });
        }
        Ok(all)
    }

    fn other_arrays(&mut self, subschema: SubschemaId, members: &'s Map<String, Value>) -> ValueSet {
        let (mut all, mut is_exact) = (Vec::new(), true);
        let mut add = |arrays: ArraySet| all.push(Alternative::Array(arrays));
        if let Some(min) = number(members, "minItems").filter(|min| *min > 0) {
            add(ArraySet { max: Some(min - 1), ..ArraySet::default() });
        }
        if let Some(max) = number(members, "maxItems") {
            add(ArraySet { min: max.saturating_add(1), ..ArraySet::default() });
        }
        let is_list = matches!(members.get("items"), Some(Value::Array(_)));
        let prefix = self.parts(subschema, members, if is_list { "items" } else { "prefixItems" });
        static TRUE: Value = Value::Bool(true);
        let any = Literal::positive(self.document.subschema_id(&TRUE, "#".to_owned()));
        for (i, item) in prefix.iter().enumerate() {
            let prefix = [vec![any; i], vec![item.negate()]].concat();
            let items = vec![Items { prefix, rest: None, evaluates: false }];
            add(ArraySet { min: i as u64 + 1, items, ..ArraySet::default() });
        }
        let rest = if is_list { "additionalItems" } else { "items" };
        if let Some(value) = members.get(rest).filter(|value| !value.is_array()) {
            let item = Literal::positive(self.document.member(subschema, rest, value));
            match prefix.len() {
                0 => add(ArraySet {
                    contains: vec![Contains { item: item.negate(), min: 1, max: None }],
                    ..ArraySet::default()
                }),
                length if *value == Value::Bool(false) => {
                    add(ArraySet { min: length as u64 + 1, ..ArraySet::default() })
                }
                _ => {
                    is_exact = false;
                    self.leave_out(subschema, rest);
                }
            }
        }
        if let Some(value) = members.get("contains") {
            let item = Literal::positive(self.document.member(subschema, "contains", value));
            let (min, max) = (number(members, "minContains").unwrap_or(1), number(members, "maxContains"));
            let mut counted = |min: u64, max: Option<u64>| {
                add(ArraySet { contains: vec![Contains { item, min, max }], ..ArraySet::default() });
            };
            if min > 0 {
                counted(0, Some(min - 1));
            }
            if let Some(max) = max {
                counted(max.saturating_add(1), None);
            }
        }
        if members.get("uniqueItems") == Some(&Value::Bool(true)) {
            is_exact = false;
            self.leave_out(subschema, "uniqueItems");
        }
        ValueSet::new(all, is_exact)
    }

    fn other_objects(
        &mut self,
        subschema: SubschemaId,
        members: &'s Map<String, Value>,
    ) -> Result<ValueSet, GrammarError> {
        let (mut all, mut is_exact) = (Vec::new(), true);
        if let Some(min) = number(members, "minProperties").filter(|min| *min > 0) {
            all.push(Alternative::Object(ObjectSet { max: Some(min - 1), ..ObjectSet::default() }));
        }
        if let Some(max) = number(members, "maxProperties") {
            all.push(Alternative::Object(ObjectSet { min: max.saturating_add(1), ..ObjectSet::default() }));
        }
        let required: Vec<&str> = list(members, "required").iter().filter_map(Value::as_str).collect();
        all.extend(self.without_one_of(&required)?.alternatives.iter().cloned());
        if let Some(Value::Object(named)) = members.get("properties") {
            for (name, value) in named {
                let part = Literal::positive(self.document.nested_id(subschema, "properties", name, value)).negate();
                let group = Members {
                    named: Rc::new(vec![(name.clone(), part)]),
                    patterned: Vec::new(),
                    rest: None,
                    evaluates: false,
                };
                let required = [name.clone()].into();
                all.push(Alternative::Object(ObjectSet { required, members: vec![group], ..ObjectSet::default() }));
            }
        }
        for keyword in ["patternProperties", "additionalProperties", "propertyNames"] {
            let is_trivial = members
                .get(keyword)
                .is_none_or(|value| *value == Value::Bool(true) || value.as_object().is_some_and(Map::is_empty));
            if !is_trivial {
                is_exact = false;
                self.leave_out(subschema, keyword);
            }
        }
        Ok(ValueSet::new(all, is_exact))
    }

    /// Returns the complement of `oneOf`: the values that no subschema allows, and those that at
    /// least two allow.
    fn none_or_two(
        &mut self,
        subschema: SubschemaId,
        members: &'s Map<String, Value>,
    ) -> Result<ValueSet, GrammarError> {
        let parts = self.parts(subschema, members, "oneOf");
        let mut none = ValueSet::new(Alternative::all(), true);
        for part in &parts {
            let other = self.literal(part.negate())?;
            none = self.intersection(&none, &other, *part)?;
        }
        let mut sets = vec![none];
        for (i, part) in parts.iter().enumerate() {
            for other in &parts[i + 1..] {
                let (one, other) = (self.literal(*part)?, self.literal(*other)?);
                sets.push(self.intersection(&one, &other, *part)?);
            }
        }
        self.union_of(sets, subschema)
    }
}

/// Returns all values of the types that are missing from `type`.
fn other_types(members: &Map<String, Value>) -> Vec<Alternative> {
    if !members.contains_key("type") {
        return Vec::new();
    }
    let own = type_alternatives(members);
    let mut all = Alternative::all();
    all.retain_mut(|alternative| match alternative {
        Alternative::Number(numbers) => {
            let own = own.iter().find_map(|own| match own {
                Alternative::Number(numbers) => Some(numbers),
                _ => None,
            });
            numbers.is_fraction = own.is_some();
            own.is_none_or(|own| own.is_integer)
        }
        other => !own.contains(other),
    });
    all
}

/// Returns the numbers outside the bounds of a subschema.
fn other_numbers(members: &Map<String, Value>) -> Vec<Alternative> {
    let opposite = |bound: Bound| Bound { is_exclusive: !bound.is_exclusive, ..bound };
    let below = bounds(members, "minimum", "exclusiveMinimum").into_iter();
    let below = below.map(|bound| NumberSet { max: Some(opposite(bound)), ..NumberSet::default() });
    let above = bounds(members, "maximum", "exclusiveMaximum").into_iter();
    let above = above.map(|bound| NumberSet { min: Some(opposite(bound)), ..NumberSet::default() });
    below.chain(above).map(Alternative::Number).collect()
}

/// Returns the alternatives of a set, with their members and items marked as not evaluated.
fn without_evaluation(set: &ValueSet) -> Vec<Alternative> {
    let mut all = Vec::clone(&set.alternatives);
    for alternative in &mut all {
        match alternative {
            Alternative::Object(objects) => objects.members.iter_mut().for_each(|members| members.evaluates = false),
            Alternative::Array(arrays) => arrays.items.iter_mut().for_each(|items| items.evaluates = false),
            _ => {}
        }
    }
    all
}
