//! Complements of subschemas: the values that they forbid.
//!
//! A subschema forbids a value if one of its keywords does, so its complement is the union of the
//! keywords' complements. If a keyword's complement cannot be expressed as a set, it is left out,
//! and the union is not exact.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::alternative::{Alternative, Arrays, Contains, Items, Literal, Members, Objects, Texts};
use super::decimal::Decimal;
use super::document::PlaceId;
use super::expand::{Set, Sets, bounds, list, number, patterns, typed, values};
use super::number::{Bound, Numbers};
use super::{formats, keywords};
use crate::GrammarError;

impl<'s> Sets<'s> {
    pub(super) fn negative(&mut self, place: PlaceId) -> Result<Set, GrammarError> {
        let (value, pointer) = self.document.get(place);
        let members = match value {
            Value::Bool(true) => return Ok(Set::new(Vec::new(), true)),
            Value::Bool(false) => return Ok(Set::new(Alternative::all(), true)),
            Value::Object(members) => members,
            // The malformed subschema is refused when it is expanded.
            _ => return Ok(Set::new(Vec::new(), false)),
        };
        keywords::check(members, pointer)?;
        let refers = ["$ref", "$dynamicRef", "$recursiveRef"].iter().any(|name| members.contains_key(*name));
        let mut sets = Vec::new();
        if refers {
            let target = self.target(place, members)?;
            sets.push(self.literal(Literal::of(target).negated())?);
            if !self.document.has_siblings {
                return self.either(sets, place);
            }
        }
        sets.push(Set::new(other_types(members), true));
        sets.extend(self.other_values(place, members));
        sets.push(Set::new(other_numbers(members), true));
        if members.contains_key("multipleOf") {
            sets.push(self.leave_out(place, "multipleOf"));
        }
        sets.push(Set::new(self.other_texts(place, members)?, true));
        // Some validators treat formats as annotations, so a text of another format may be valid.
        if members.get("format").and_then(Value::as_str).is_some_and(|name| formats::regex(name).is_some()) {
            sets.push(self.leave_out(place, "format"));
        }
        sets.push(self.other_arrays(place, members));
        sets.push(self.other_objects(place, members)?);
        for part in self.parts(place, members, "allOf") {
            sets.push(self.literal(part.negated())?);
        }
        if members.contains_key("anyOf") {
            let mut none = Set::new(Alternative::all(), true);
            for part in self.parts(place, members, "anyOf") {
                let other = self.literal(part.negated())?;
                none = self.both(&none, &other, part)?;
            }
            sets.push(none);
        }
        if members.contains_key("oneOf") {
            sets.push(self.none_or_two(place, members)?);
        }
        if let Some(value) = members.get("not") {
            let part = self.document.member(place, "not", value);
            sets.push(self.literal(Literal::of(part))?);
        }
        sets.push(self.conditional(place, members, false)?);
        sets.extend(self.dependent(place, members, false)?);
        if ["unevaluatedProperties", "unevaluatedItems"].iter().any(|name| members.contains_key(*name)) {
            sets.push(self.leave_out(place, "unevaluatedProperties"));
        }
        let set = self.either(sets, place)?;
        Ok(Set::new(unevaluating(&set), set.is_exact))
    }

    /// Returns an inexact empty set, and records the keyword for the error text.
    fn leave_out(&mut self, place: PlaceId, keyword: &str) -> Set {
        let pointer = self.document.get(place).1.to_owned();
        self.left_out.get_or_insert((pointer, keyword.to_owned()));
        Set::new(Vec::new(), false)
    }

    /// Returns the values that `const` and `enum` do not list.
    fn other_values(&mut self, place: PlaceId, members: &Map<String, Value>) -> Option<Set> {
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
            .map(super::alternative::Exact::of)
            .collect();
        if !flags.is_empty() {
            all.push(Alternative::Values(flags));
        }
        let mut points: Vec<Decimal> =
            listed.iter().filter_map(|value| value.value.as_number().map(Decimal::of)).collect();
        points.sort_by(Decimal::compare);
        // The numbers between the listed ones.
        let mut bound: Option<Bound> = None;
        for point in points {
            let end = Bound { value: point, is_exclusive: true };
            all.push(Alternative::Number(Numbers {
                least: bound.replace(end.clone()),
                most: Some(end),
                ..Numbers::default()
            }));
        }
        all.push(Alternative::Number(Numbers { least: bound, ..Numbers::default() }));
        let excluded = listed.iter().filter_map(|value| value.value.as_str().map(str::to_owned)).collect();
        all.push(Alternative::Text(Texts { excluded, ..Texts::default() }));
        for (is_type, other) in [
            (listed.iter().any(|value| value.value.is_array()), Alternative::Array(Arrays::default())),
            (listed.iter().any(|value| value.value.is_object()), Alternative::Object(Objects::default())),
        ] {
            match is_type {
                false => all.push(other),
                true => {
                    is_exact = false;
                    self.leave_out(place, "enum");
                }
            }
        }
        all.retain(|alternative| !alternative.has_no_room());
        Some(Set::new(all, is_exact))
    }

    fn other_texts(&mut self, place: PlaceId, members: &Map<String, Value>) -> Result<Vec<Alternative>, GrammarError> {
        let mut all = Vec::new();
        let mut add = |texts: Texts| all.push(Alternative::Text(texts));
        if let Some(least) = number(members, "minLength").filter(|least| *least > 0) {
            add(Texts { most: Some(least - 1), ..Texts::default() });
        }
        if let Some(most) = number(members, "maxLength") {
            add(Texts { least: most.saturating_add(1), ..Texts::default() });
        }
        for pattern in patterns(members, self.document.get(place).1)? {
            add(Texts { patterns: [pattern.negated()].into(), ..Texts::default() });
        }
        Ok(all)
    }

    fn other_arrays(&mut self, place: PlaceId, members: &'s Map<String, Value>) -> Set {
        let (mut all, mut is_exact) = (Vec::new(), true);
        let mut add = |arrays: Arrays| all.push(Alternative::Array(arrays));
        if let Some(least) = number(members, "minItems").filter(|least| *least > 0) {
            add(Arrays { most: Some(least - 1), ..Arrays::default() });
        }
        if let Some(most) = number(members, "maxItems") {
            add(Arrays { least: most.saturating_add(1), ..Arrays::default() });
        }
        let is_list = matches!(members.get("items"), Some(Value::Array(_)));
        let prefix = self.parts(place, members, if is_list { "items" } else { "prefixItems" });
        static TRUE: Value = Value::Bool(true);
        let any = Literal::of(self.document.place(&TRUE, "#".to_owned()));
        for (i, item) in prefix.iter().enumerate() {
            let prefix = [vec![any; i], vec![item.negated()]].concat();
            let items = vec![Items { prefix, rest: None, evaluates: false }];
            add(Arrays { least: i as u64 + 1, items, ..Arrays::default() });
        }
        let rest = if is_list { "additionalItems" } else { "items" };
        if let Some(value) = members.get(rest).filter(|value| !value.is_array()) {
            let item = Literal::of(self.document.member(place, rest, value));
            match prefix.len() {
                0 => add(Arrays {
                    contains: vec![Contains { item: item.negated(), least: 1, most: None }],
                    ..Arrays::default()
                }),
                length if *value == Value::Bool(false) => add(Arrays { least: length as u64 + 1, ..Arrays::default() }),
                _ => {
                    is_exact = false;
                    self.leave_out(place, rest);
                }
            }
        }
        if let Some(value) = members.get("contains") {
            let item = Literal::of(self.document.member(place, "contains", value));
            let (least, most) = (number(members, "minContains").unwrap_or(1), number(members, "maxContains"));
            let mut counted = |least: u64, most: Option<u64>| {
                add(Arrays { contains: vec![Contains { item, least, most }], ..Arrays::default() });
            };
            if least > 0 {
                counted(0, Some(least - 1));
            }
            if let Some(most) = most {
                counted(most.saturating_add(1), None);
            }
        }
        if members.get("uniqueItems") == Some(&Value::Bool(true)) {
            is_exact = false;
            self.leave_out(place, "uniqueItems");
        }
        Set::new(all, is_exact)
    }

    fn other_objects(&mut self, place: PlaceId, members: &'s Map<String, Value>) -> Result<Set, GrammarError> {
        let (mut all, mut is_exact) = (Vec::new(), true);
        if let Some(least) = number(members, "minProperties").filter(|least| *least > 0) {
            all.push(Alternative::Object(Objects { most: Some(least - 1), ..Objects::default() }));
        }
        if let Some(most) = number(members, "maxProperties") {
            all.push(Alternative::Object(Objects { least: most.saturating_add(1), ..Objects::default() }));
        }
        let required: Vec<&str> = list(members, "required").iter().filter_map(Value::as_str).collect();
        all.extend(self.lacking_one_of(&required)?.alternatives.iter().cloned());
        if let Some(Value::Object(named)) = members.get("properties") {
            for (name, value) in named {
                let part = Literal::of(self.document.inner(place, "properties", name, value)).negated();
                let group = Members {
                    named: Rc::new(vec![(name.clone(), part)]),
                    patterned: Vec::new(),
                    rest: None,
                    evaluates: false,
                };
                let required = [name.clone()].into();
                all.push(Alternative::Object(Objects { required, members: vec![group], ..Objects::default() }));
            }
        }
        for keyword in ["patternProperties", "additionalProperties", "propertyNames"] {
            let is_trivial = members
                .get(keyword)
                .is_none_or(|value| *value == Value::Bool(true) || value.as_object().is_some_and(Map::is_empty));
            if !is_trivial {
                is_exact = false;
                self.leave_out(place, keyword);
            }
        }
        Ok(Set::new(all, is_exact))
    }

    /// Returns the complement of `oneOf`: values that no part allows, or that two parts allow.
    fn none_or_two(&mut self, place: PlaceId, members: &'s Map<String, Value>) -> Result<Set, GrammarError> {
        let parts = self.parts(place, members, "oneOf");
        let mut none = Set::new(Alternative::all(), true);
        for part in &parts {
            let other = self.literal(part.negated())?;
            none = self.both(&none, &other, *part)?;
        }
        let mut sets = vec![none];
        for (i, part) in parts.iter().enumerate() {
            for other in &parts[i + 1..] {
                let (one, other) = (self.literal(*part)?, self.literal(*other)?);
                sets.push(self.both(&one, &other, *part)?);
            }
        }
        self.either(sets, place)
    }
}

/// Returns the types that are missing from `type`.
fn other_types(members: &Map<String, Value>) -> Vec<Alternative> {
    if !members.contains_key("type") {
        return Vec::new();
    }
    let own = typed(members);
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

/// Returns the numbers outside the bounds.
fn other_numbers(members: &Map<String, Value>) -> Vec<Alternative> {
    let opposite = |bound: Bound| Bound { is_exclusive: !bound.is_exclusive, ..bound };
    let below = bounds(members, "minimum", "exclusiveMinimum").into_iter();
    let below = below.map(|bound| Numbers { most: Some(opposite(bound)), ..Numbers::default() });
    let above = bounds(members, "maximum", "exclusiveMaximum").into_iter();
    let above = above.map(|bound| Numbers { least: Some(opposite(bound)), ..Numbers::default() });
    below.chain(above).map(Alternative::Number).collect()
}

/// Returns alternatives whose parts do not count as evaluated.
fn unevaluating(set: &Set) -> Vec<Alternative> {
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
