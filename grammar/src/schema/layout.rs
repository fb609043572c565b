//! Layouts of objects and arrays, with the set of each part. Finds out which sets are empty.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::alternative::{Alternative, Arrays, Content, Literal, Objects, State, Texts, smaller};
use super::expand::Sets;
use super::keywords::wrong;
use super::number::{NumberForm, Numbers};
use super::text::{self, Pattern};
use crate::GrammarError;

/// Max patterns of names in one object.
const MAX_PATTERNS: usize = 6;
/// Max names that a pattern is expanded to.
const MAX_NAMES: usize = 256;

/// A member that has a name.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub name: String,
    pub is_required: bool,
    pub state: State,
}

/// Members whose names are not listed.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub names: Texts,
    /// Whether every possible end of a begun key might be a duplicate.
    pub is_narrow: bool,
    pub state: State,
}

/// A region, with a list of its names if they are few.
type NamedRegion = (Region, Option<Vec<String>>);

/// An object's members.
#[derive(Clone, Debug)]
pub(super) struct ObjectLayout {
    pub named: Vec<Named>,
    /// Names that are excluded from all regions.
    pub taken: Vec<String>,
    pub regions: Vec<Region>,
    pub least: u64,
    pub most: Option<u64>,
}

/// An array's items.
#[derive(Clone, Debug)]
pub(super) struct ArrayLayout {
    pub prefix: Vec<State>,
    pub rest: Option<State>,
    pub least: u64,
    pub most: Option<u64>,
}

/// Returns whether a number of these can be written.
fn content_of_numbers(numbers: &Numbers) -> Content {
    let is_bounded = numbers.is_fraction || numbers.least.is_some() && numbers.most.is_some();
    match numbers.form() {
        Ok(NumberForm::All(all)) if is_bounded => {
            let all: Vec<_> = all.into_iter().map(|regex| (regex, true)).collect();
            match text::is_empty(&all) {
                Some(true) => Content::None { is_exact: false },
                _ => Content::Some,
            }
        }
        _ => Content::Some,
    }
}

impl Sets<'_> {
    /// Returns whether subschemas certainly have no value in common.
    pub fn is_empty(&mut self, state: &State) -> Result<bool, GrammarError> {
        Ok(self.content(state)? == Content::None { is_exact: true })
    }

    /// Returns whether the set has a value that can be written.
    pub fn content(&mut self, state: &State) -> Result<Content, GrammarError> {
        if let Some(content) = self.contents.get(state) {
            return Ok(*content);
        }
        if !self.contents_open.insert(state.clone()) {
            // A value that contains itself cannot be written.
            self.met_content = true;
            return Ok(Content::None { is_exact: true });
        }
        self.deepen(self.contents_open.len())?;
        let before = std::mem::replace(&mut self.met_content, false);
        let before_open = std::mem::replace(&mut self.met_open, false);
        let content = self.content_of_parts(state);
        self.contents_open.remove(state);
        let mut content = content?;
        // A set that is still being computed is not known to be empty.
        let is_partial = self.met_open && content != Content::Some;
        if is_partial {
            content = Content::None { is_exact: false };
        }
        if !is_partial && (content == Content::Some || !self.met_content || self.contents_open.is_empty()) {
            self.contents.insert(state.clone(), content);
        }
        self.met_content |= before;
        self.met_open |= before_open;
        Ok(content)
    }

    fn content_of_parts(&mut self, state: &State) -> Result<Content, GrammarError> {
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
                    // Items that the layout leaves out may satisfy each `contains`.
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
                if objects.least <= objects.required.len() as u64 {
                    return Ok(Content::Some);
                }
                let mut is_exact = true;
                let layout = self.object_layout(objects, &mut is_exact)?;
                Ok(if layout.is_some() { Content::Some } else { Content::None { is_exact } })
            }
        }
    }

    /// Returns whether some item can satisfy each `contains`.
    fn content_of_contains(&mut self, arrays: &Arrays, layout: &ArrayLayout) -> Result<Content, GrammarError> {
        for contains in arrays.contains.iter().filter(|contains| contains.least > 0) {
            let mut content = Content::None { is_exact: true };
            for place in layout.prefix.iter().chain(&layout.rest) {
                let mut state = place.clone();
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

    /// Returns the layout of an array; `None` if it cannot be long enough.
    pub fn array_layout(&mut self, arrays: &Arrays, is_exact: &mut bool) -> Result<Option<ArrayLayout>, GrammarError> {
        let length = arrays.items.iter().map(|items| items.prefix.len()).max().unwrap_or(0);
        let at = |i: usize| -> State {
            arrays.items.iter().filter_map(|items| items.prefix.get(i).copied().or(items.rest)).collect()
        };
        let (mut prefix, mut most) = (Vec::new(), arrays.most);
        let mut rest = Some(at(length));
        for i in 0..=length {
            if most.is_some_and(|most| i as u64 >= most) {
                rest = None;
                break;
            }
            let state = at(i);
            if let Content::None { is_exact: own } = self.content(&state)? {
                *is_exact &= own;
                most = smaller(most, Some(i as u64));
                rest = None;
                break;
            }
            if i < length {
                prefix.push(state);
            }
        }
        let fits = most.is_none_or(|most| arrays.least <= most);
        Ok(fits.then_some(ArrayLayout { prefix, rest, least: arrays.least, most }))
    }

    /// Returns the layout of an object; `None` if it cannot have enough members.
    pub fn object_layout(
        &mut self,
        objects: &Objects,
        is_exact: &mut bool,
    ) -> Result<Option<ObjectLayout>, GrammarError> {
        let maps: Vec<HashMap<&str, Literal>> = objects
            .members
            .iter()
            .map(|group| group.named.iter().map(|(name, literal)| (name.as_str(), *literal)).collect())
            .collect();
        let mut regions = self.regions(objects, is_exact)?;
        let mut names: Vec<String> = Vec::new();
        let mut taken = HashSet::new();
        let declared = objects.members.iter().flat_map(|group| group.named.iter().map(|(name, _)| name));
        let listed: Vec<String> = regions.iter().flat_map(|(_, listed)| listed.clone().unwrap_or_default()).collect();
        for name in declared.chain(&objects.required).chain(&listed) {
            if taken.insert(name.clone()) {
                names.push(name.clone());
            }
        }
        regions.retain(|(_, listed)| listed.is_none());
        let mut layout = ObjectLayout {
            named: Vec::new(),
            taken: names.clone(),
            regions: Vec::new(),
            least: objects.least,
            most: objects.most,
        };
        for name in names {
            let mut state = State::new();
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
                Content::Some => layout.named.push(Named { name, is_required, state }),
                Content::None { is_exact: own } if is_required => {
                    *is_exact &= own;
                    return Ok(None);
                }
                Content::None { is_exact: own } => *is_exact &= own,
            }
        }
        for (region, _) in regions {
            match self.content(&region.state)? {
                Content::Some => layout.regions.push(region),
                Content::None { is_exact: own } => *is_exact &= own,
            }
        }
        let is_open = !layout.regions.is_empty();
        Ok((is_open || layout.named.len() as u64 >= objects.least).then_some(layout))
    }

    /// Returns whether a pattern matches a name.
    pub fn matches(&mut self, pattern: &Pattern, name: &str, at: Literal) -> Result<bool, GrammarError> {
        self.work(10)?;
        pattern.has(name).ok_or_else(|| {
            wrong(
                self.document.get(at.place).1,
                format!(
                    "it takes too long to check whether the pattern matches the name {name:?}; use a simpler pattern"
                ),
            )
        })
    }

    /// Returns the names that no schema lists, by what is asked of their values; with the names,
    /// where they are few. Clears `is_exact` where names are missing.
    fn regions(&mut self, objects: &Objects, is_exact: &mut bool) -> Result<Vec<NamedRegion>, GrammarError> {
        let mut patterns: Vec<(&Pattern, &str)> = Vec::new();
        for (pattern, source, literal) in objects.members.iter().flat_map(|group| &group.patterned) {
            if !patterns.iter().any(|(own, _)| *own == pattern) {
                patterns.push((pattern, source));
            }
            if patterns.len() > MAX_PATTERNS {
                let message = format!("more than {MAX_PATTERNS} patterns of names are not supported for one object");
                return Err(wrong(self.document.get(literal.place).1, message));
            }
        }
        let allowed = self.allowed_names(objects, is_exact)?;
        let mut all = Vec::new();
        for choice in 0u32..1 << patterns.len() {
            let is_in = |pattern: &Pattern| {
                patterns.iter().position(|(own, _)| *own == pattern).is_some_and(|at| choice >> at & 1 == 1)
            };
            let mut state = State::new();
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
                _ => pattern.negated(),
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
                let is_narrow = names.most.is_some() || names.patterns.iter().any(|pattern| pattern.holds);
                all.push((Region { names, is_narrow, state: state.clone() }, listed));
            }
        }
        // Names that `propertyNames` lists one by one.
        for name in self.listed_names(objects)? {
            let region = Region { names: Texts::default(), is_narrow: false, state: State::new() };
            all.push((region, Some(vec![name])));
        }
        Ok(all)
    }

    fn too_complex(&self, objects: &Objects) -> GrammarError {
        let place =
            objects.members.iter().flat_map(|group| &group.patterned).map(|(_, _, literal)| literal.place).next();
        let place = place.or(objects.names.first().map(|literal| literal.place)).unwrap_or(0);
        wrong(
            self.document.get(place).1,
            "it takes too long to check which names its patterns allow; use simpler patterns".to_owned(),
        )
    }

    /// Returns the texts that `propertyNames` allows, but those that it lists.
    fn allowed_names(&mut self, objects: &Objects, is_exact: &mut bool) -> Result<Vec<Texts>, GrammarError> {
        let state: State = objects.names.iter().copied().collect();
        let set = self.state(&state)?;
        *is_exact &= set.is_exact;
        Ok(set
            .alternatives
            .iter()
            .filter_map(|one| if let Alternative::Text(texts) = one { Some(texts.clone()) } else { None })
            .collect())
    }

    fn listed_names(&mut self, objects: &Objects) -> Result<Vec<String>, GrammarError> {
        let state: State = objects.names.iter().copied().collect();
        let set = self.state(&state)?;
        let values = set
            .alternatives
            .iter()
            .filter_map(|one| if let Alternative::Values(values) = one { Some(values) } else { None });
        Ok(values.flatten().filter_map(|value| value.value.as_str().map(str::to_owned)).collect())
    }
}

impl Texts {
    /// Returns whether the set has a text; `None` if that takes too long to find out.
    pub fn has(&self, text: &str) -> Option<bool> {
        let length = text.chars().count() as u64;
        if length < self.least || self.most.is_some_and(|most| length > most) || self.excluded.contains(text) {
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

    /// Returns whether the set is empty; `None` if that takes too long to find out.
    pub fn is_empty(&self) -> Option<bool> {
        if self.patterns.is_empty() && (self.excluded.is_empty() || self.most.is_none()) {
            return Some(false);
        }
        let mut all = vec![(text::of_length(self.least, self.most, false), true)];
        all.extend(self.patterns.iter().map(|pattern| (pattern.plain.clone(), pattern.holds)));
        all.extend(self.excluded.iter().map(|text| (text::literal(text, false), false)));
        text::is_empty(&all)
    }
}
