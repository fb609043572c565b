//! Layouts of objects and arrays, with the set of values of each part. They show which sets are
//! empty.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::alternative::{Alternative, ArraySet, Conjunction, Content, Literal, ObjectSet, TextSet, smaller};
use super::expand::Sets;
use super::keywords::schema_error;
use super::number::{NumberForm, NumberSet};
use super::text::{self, Condition, Pattern};
use crate::GrammarError;

/// Max number of patterns of names in one object.
const MAX_PATTERNS: usize = 6;
/// Max number of names that are listed in place of a pattern.
const MAX_NAMES: usize = 256;

/// Member whose name is listed.
#[derive(Clone, Debug)]
pub(super) struct NamedMember {
    pub name: String,
    pub is_required: bool,
    pub state: Conjunction,
}

/// Members whose names are not listed, with the same constraints on their values.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub names: TextSet,
    /// Whether the names are so restricted that a key may have only duplicates as completions.
    pub is_narrow: bool,
    pub state: Conjunction,
}

/// Region with its names.
struct NamedRegion {
    region: Region,
    /// All names of the region, if they are few enough to be listed.
    names: Option<Vec<String>>,
}

/// Layout of an object's members.
#[derive(Clone, Debug)]
pub(super) struct ObjectLayout {
    pub named: Vec<NamedMember>,
    /// Names that are excluded from all regions.
    pub excluded_names: Vec<String>,
    pub regions: Vec<Region>,
    pub min: u64,
    pub max: Option<u64>,
}

/// Layout of an array's items.
#[derive(Clone, Debug)]
pub(super) struct ArrayLayout {
    pub prefix: Vec<Conjunction>,
    pub rest: Option<Conjunction>,
    pub min: u64,
    pub max: Option<u64>,
}

/// Returns whether the set has a number that can be written.
fn content_of_numbers(numbers: &NumberSet) -> Content {
    let is_bounded = numbers.is_fraction || numbers.min.is_some() && numbers.max.is_some();
    match numbers.lexeme() {
        Ok(NumberForm::All(all)) if is_bounded => {
            let all: Vec<_> = all.into_iter().map(Condition::matches).collect();
            match text::is_empty(&all) {
                Some(true) => Content::None { is_exact: false },
                _ => Content::Some,
            }
        }
        _ => Content::Some,
    }
}

impl Sets<'_> {
    /// Returns whether it is certain that the subschemas have no common value.
    pub fn is_empty(&mut self, state: &Conjunction) -> Result<bool, GrammarError> {
        Ok(self.content(state)? == Content::None { is_exact: true })
    }

    /// Returns whether the subschemas have a common value that can be written.
    pub fn content(&mut self, state: &Conjunction) -> Result<Content, GrammarError> {
        if let Some(content) = self.contents.get(state) {
            return Ok(*content);
        }
        if !self.contents_open.insert(state.clone()) {
            // A value that must contain itself cannot be written.
            self.met_content = true;
            return Ok(Content::None { is_exact: true });
        }
        self.check_depth(self.contents_open.len())?;
        let before = std::mem::replace(&mut self.met_content, false);
        let before_open = std::mem::replace(&mut self.met_in_progress, false);
        let content = self.content_of_parts(state);
        self.contents_open.remove(state);
        let mut content = content?;
        // A set that is still being computed may get more values later.
        let is_partial = self.met_in_progress && content != Content::Some;
        if is_partial {
            content = Content::None { is_exact: false };
        }
        if !is_partial && (content == Content::Some || !self.met_content || self.contents_open.is_empty()) {
            self.contents.insert(state.clone(), content);
        }
        self.met_content |= before;
        self.met_in_progress |= before_open;
        Ok(content)
    }

    fn content_of_parts(&mut self, state: &Conjunction) -> Result<Content, GrammarError> {
        let set = self.state(state)?;
        let mut is_exact = set.is_exact;
        for alternative in set.alternatives.iter() {
            self.work(1)?;
            match self.content_of(alternative)? {
                Content::Some => return Ok(Content::Some),
                Content::None { is_exact: own } => is_exact &= own,
            }
        }
        Ok(Content::None { is_exact })
    }

    fn content_of(&mut self, alternative: &Alternative) -> Result<Content, GrammarError> {
        let none = Content::None { is_exact: true };
        match alternative {
            Alternative::Null | Alternative::Boolean | Alternative::Values(_) => Ok(Content::Some),
            Alternative::Number(numbers) => Ok(content_of_numbers(numbers)),
            Alternative::Text(texts) => Ok(if texts.is_empty() == Some(true) { none } else { Content::Some }),
            Alternative::Array(arrays) => {
                let mut is_exact = true;
                let content = match self.array_layout(arrays, &mut is_exact)? {
                    Some(layout) => self.content_of_contains(arrays, &layout)?,
                    None => none,
                };
                Ok(match content {
                    // The items that the layout omits may satisfy a `contains`.
                    Content::None { is_exact: own } => Content::None { is_exact: own && is_exact },
                    Content::Some => Content::Some,
                })
            }
            Alternative::Object(objects) => {
                let mut is_unsure = false;
                for name in &objects.required {
                    let state = self.member_literals(objects, name)?;
                    match self.content(&state)? {
                        Content::Some => {}
                        Content::None { is_exact: true } => return Ok(none),
                        Content::None { is_exact: false } => {
                            is_unsure = true;
                            continue;
                        }
                    }
                    for names in &objects.names {
                        let allowed = self.allows(*names, &Value::from(name.as_str()))?;
                        if allowed != Some(true) {
                            return Ok(Content::None { is_exact: allowed == Some(false) });
                        }
                    }
                }
                if is_unsure {
                    return Ok(Content::None { is_exact: false });
                }
                if objects.min <= objects.required.len() as u64 {
                    return Ok(Content::Some);
                }
                let mut is_exact = true;
                let layout = self.object_layout(objects, &mut is_exact)?;
                Ok(if layout.is_some() { Content::Some } else { Content::None { is_exact } })
            }
        }
    }

    /// Returns whether the array can have items that satisfy each `contains`.
    fn content_of_contains(&mut self, arrays: &ArraySet, layout: &ArrayLayout) -> Result<Content, GrammarError> {
        for contains in arrays.contains.iter().filter(|contains| contains.min > 0) {
            let mut content = Content::None { is_exact: true };
            for subschema in layout.prefix.iter().chain(&layout.rest) {
                let mut state = subschema.clone();
                state.insert(contains.item);
                match (self.content(&state)?, &mut content) {
                    (Content::Some, _) => content = Content::Some,
                    (Content::None { is_exact: own }, Content::None { is_exact }) => *is_exact &= own,
                    _ => {}
                }
            }
            if content != Content::Some {
                return Ok(content);
            }
        }
        Ok(Content::Some)
    }

    /// Returns the layout of an array. Returns `None` if the array cannot be long enough.
    pub fn array_layout(
        &mut self,
        arrays: &ArraySet,
        is_exact: &mut bool,
    ) -> Result<Option<ArrayLayout>, GrammarError> {
        let length = arrays.items.iter().map(|items| items.prefix.len()).max().unwrap_or(0);
        let at = |i: usize| -> Conjunction {
            arrays.items.iter().filter_map(|items| items.prefix.get(i).copied().or(items.rest)).collect()
        };
        let (mut prefix, mut max) = (Vec::new(), arrays.max);
        let mut rest = Some(at(length));
        for i in 0..=length {
            if max.is_some_and(|max| i as u64 >= max) {
                rest = None;
                break;
            }
            let state = at(i);
            if let Content::None { is_exact: own } = self.content(&state)? {
                *is_exact &= own;
                max = smaller(max, Some(i as u64));
                rest = None;
                break;
            }
            if i < length {
                prefix.push(state);
            }
        }
        let fits = max.is_none_or(|max| arrays.min <= max);
        Ok(fits.then_some(ArrayLayout { prefix, rest, min: arrays.min, max }))
    }

    /// Returns the layout of an object. Returns `None` if the object cannot have enough members.
    pub fn object_layout(
        &mut self,
        objects: &ObjectSet,
        is_exact: &mut bool,
    ) -> Result<Option<ObjectLayout>, GrammarError> {
        let maps: Vec<HashMap<&str, Literal>> = objects
            .members
            .iter()
            .map(|group| group.named.iter().map(|(name, literal)| (name.as_str(), *literal)).collect())
            .collect();
        let mut regions = self.regions(objects, is_exact)?;
        let mut names: Vec<String> = Vec::new();
        let mut excluded_names = HashSet::new();
        let declared = objects.members.iter().flat_map(|group| group.named.iter().map(|(name, _)| name));
        let listed: Vec<String> = regions.iter().flat_map(|named| named.names.clone().unwrap_or_default()).collect();
        for name in declared.chain(&objects.required).chain(&listed) {
            if excluded_names.insert(name.clone()) {
                names.push(name.clone());
            }
        }
        regions.retain(|named| named.names.is_none());
        let mut layout = ObjectLayout {
            named: Vec::new(),
            excluded_names: names.clone(),
            regions: Vec::new(),
            min: objects.min,
            max: objects.max,
        };
        for name in names {
            let mut state = Conjunction::new();
            for (map, group) in maps.iter().zip(&objects.members) {
                self.work(1)?;
                let own = map.get(name.as_str());
                state.extend(own);
                let mut is_seen = own.is_some();
                for (pattern, _, literal) in &group.patterned {
                    if self.matches(pattern, &name, *literal)? {
                        state.insert(*literal);
                        is_seen = true;
                    }
                }
                state.extend(group.rest.filter(|_| !is_seen));
            }
            let is_required = objects.required.contains(&name);
            let mut content = self.content(&state)?;
            for literal in &objects.names {
                let allowed = self.allows(*literal, &Value::from(name.as_str()))?;
                if allowed != Some(true) {
                    content = Content::None { is_exact: allowed == Some(false) };
                }
            }
            match content {
                Content::Some => layout.named.push(NamedMember { name, is_required, state }),
                Content::None { is_exact: own } if is_required => {
                    *is_exact &= own;
                    return Ok(None);
                }
                Content::None { is_exact: own } => *is_exact &= own,
            }
        }
        for NamedRegion { region, .. } in regions {
            match self.content(&region.state)? {
                Content::Some => layout.regions.push(region),
                Content::None { is_exact: own } => *is_exact &= own,
            }
        }
        let is_open = !layout.regions.is_empty();
        Ok((is_open || layout.named.len() as u64 >= objects.min).then_some(layout))
    }

    /// Returns whether a pattern matches a name.
    pub fn matches(&mut self, pattern: &Pattern, name: &str, at: Literal) -> Result<bool, GrammarError> {
        self.work(10)?;
        pattern.has(name).ok_or_else(|| {
            schema_error(
                self.document.get(at.subschema).1,
                format!(
                    "it takes too long to check whether the pattern matches the name {name:?}; use a simpler pattern"
                ),
            )
        })
    }

    /// Returns the regions of names that no schema lists. All names of a region have the same
    /// constraints on their values. If a region has few names, they are listed. Clears `is_exact`
    /// if the regions lack some names.
    fn regions(&mut self, objects: &ObjectSet, is_exact: &mut bool) -> Result<Vec<NamedRegion>, GrammarError> {
        let mut patterns: Vec<(&Pattern, &str)> = Vec::new();
        for (pattern, source, literal) in objects.members.iter().flat_map(|group| &group.patterned) {
            if !patterns.iter().any(|(own, _)| *own == pattern) {
                patterns.push((pattern, source));
            }
            if patterns.len() > MAX_PATTERNS {
                let message = format!("more than {MAX_PATTERNS} patterns of names are not supported for one object");
                return Err(schema_error(self.document.get(literal.subschema).1, message));
            }
        }
        let allowed = self.allowed_names(objects, is_exact)?;
        let mut all = Vec::new();
        for choice in 0u32..1 << patterns.len() {
            let is_in = |pattern: &Pattern| {
                patterns.iter().position(|(own, _)| *own == pattern).is_some_and(|at| choice >> at & 1 == 1)
            };
            let mut state = Conjunction::new();
            for group in &objects.members {
                let own: Vec<Literal> = group
                    .patterned
                    .iter()
                    .filter(|(pattern, ..)| is_in(pattern))
                    .map(|(_, _, literal)| *literal)
                    .collect();
                state.extend(if own.is_empty() { group.rest.as_slice() } else { own.as_slice() });
            }
            if let Content::None { is_exact: own } = self.content(&state)? {
                *is_exact &= own;
                continue;
            }
            let chosen = patterns.iter().enumerate().map(|(i, (pattern, _))| match choice >> i & 1 {
                1 => (*pattern).clone(),
                _ => pattern.negate(),
            });
            let chosen: Vec<Pattern> = chosen.collect();
            for texts in &allowed {
                self.work(100)?;
                let mut names = texts.clone();
                names.patterns.extend(chosen.iter().cloned());
                match names.is_empty() {
                    Some(true) => continue,
                    Some(false) => {}
                    None => return Err(self.too_complex(objects)),
                }
                let sources = patterns.iter().filter(|(pattern, _)| is_in(pattern)).map(|(_, source)| *source);
                let sources = sources.chain(texts.sources.iter().map(String::as_str));
                let listed = sources.filter_map(|source| text::texts(source, MAX_NAMES)).min_by_key(Vec::len);
                let mut has = |name: &String| {
                    let has = names.has(name);
                    *is_exact &= has.is_some();
                    has == Some(true)
                };
                let listed = listed.map(|all| all.into_iter().filter(|name| has(name)).collect());
                let is_narrow = names.max.is_some() || names.patterns.iter().any(|pattern| pattern.holds);
                let region = Region { names, is_narrow, state: state.clone() };
                all.push(NamedRegion { region, names: listed });
            }
        }
        // Each name that `propertyNames` lists gets its own region.
        for name in self.listed_names(objects)? {
            let region = Region { names: TextSet::default(), is_narrow: false, state: Conjunction::new() };
            all.push(NamedRegion { region, names: Some(vec![name]) });
        }
        Ok(all)
    }

    fn too_complex(&self, objects: &ObjectSet) -> GrammarError {
        let subschema =
            objects.members.iter().flat_map(|group| &group.patterned).map(|(_, _, literal)| literal.subschema).next();
        let subschema = subschema.or(objects.names.first().map(|literal| literal.subschema)).unwrap_or(0);
        schema_error(
            self.document.get(subschema).1,
            "it takes too long to check which names its patterns allow; use simpler patterns".to_owned(),
        )
    }

    /// Returns the texts that `propertyNames` allows, except the names that it lists.
    fn allowed_names(&mut self, objects: &ObjectSet, is_exact: &mut bool) -> Result<Vec<TextSet>, GrammarError> {
        let state: Conjunction = objects.names.iter().copied().collect();
        let set = self.state(&state)?;
        *is_exact &= set.is_exact;
        Ok(set
            .alternatives
            .iter()
            .filter_map(|one| if let Alternative::Text(texts) = one { Some(texts.clone()) } else { None })
            .collect())
    }

    fn listed_names(&mut self, objects: &ObjectSet) -> Result<Vec<String>, GrammarError> {
        let state: Conjunction = objects.names.iter().copied().collect();
        let set = self.state(&state)?;
        let values = set
            .alternatives
            .iter()
            .filter_map(|one| if let Alternative::Values(values) = one { Some(values) } else { None });
        Ok(values.flatten().filter_map(|value| value.value.as_str().map(str::to_owned)).collect())
    }
}

impl TextSet {
    /// Returns whether a text is in the set, or `None` if the check takes too long.
    pub fn has(&self, text: &str) -> Option<bool> {
        let length = text.chars().count() as u64;
        if length < self.min || self.max.is_some_and(|max| length > max) || self.excluded.contains(text) {
            return Some(false);
        }
        let mut all = Some(true);
        for pattern in &self.patterns {
            match pattern.has(text) {
                Some(false) => return Some(false),
                Some(true) => {}
                None => all = None,
            }
        }
        all
    }

    /// Returns whether the set is empty, or `None` if the check takes too long.
    pub fn is_empty(&self) -> Option<bool> {
        if self.patterns.is_empty() && (self.excluded.is_empty() || self.max.is_none()) {
            return Some(false);
        }
        let mut all = vec![Condition::matches(text::length_regex(self.min, self.max, false))];
        all.extend(
            self.patterns.iter().map(|pattern| Condition { regex: pattern.plain.clone(), holds: pattern.holds }),
        );
        all.extend(self.excluded.iter().map(|text| Condition::differs(text::literal(text, false))));
        text::is_empty(&all)
    }
}
