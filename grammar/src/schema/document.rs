//! Places of a schema, and resolution of references to them.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::uri;

/// A place in a schema, by its number.
pub(super) type PlaceId = usize;

/// Keywords whose values are data, not schemas.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "example"];

/// A place in a schema.
#[derive(Debug)]
pub(super) struct Place<'s> {
    pub value: &'s Value,
    /// JSON pointer as users write it: `#/properties/name`.
    pub pointer: String,
}

/// Places of a schema that were visited, and the names that references can resolve.
#[derive(Debug)]
pub(super) struct Document<'s> {
    places: Vec<Place<'s>>,
    /// Places by the address of their values.
    numbers: HashMap<*const Value, PlaceId>,
    /// Index of the resource (in `resources`) of each value, by the address of the value.
    bases: HashMap<*const Value, usize>,
    resources: Vec<Resource>,
    /// Anchors by resource and name.
    anchors: HashMap<(usize, String), PlaceId>,
    dynamic: HashMap<String, Vec<PlaceId>>,
    ids: HashMap<String, PlaceId>,
    /// Whether keywords beside `$ref` count: they do since draft 2019-09.
    pub has_siblings: bool,
}

#[derive(Debug)]
struct Resource {
    root: PlaceId,
    uri: String,
}

impl<'s> Document<'s> {
    /// Indexes the named places of a schema.
    pub fn of(schema: &'s Value) -> Document<'s> {
        let dialect = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let is_old = ["draft-03", "draft-04", "draft-06", "draft-07"].iter().any(|draft| dialect.contains(draft));
        let mut document = Document {
            places: Vec::new(),
            numbers: HashMap::new(),
            bases: HashMap::new(),
            resources: Vec::new(),
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
            ids: HashMap::new(),
            has_siblings: !is_old,
        };
        let root = document.place(schema, "#".to_owned());
        document.resources.push(Resource { root, uri: String::new() });
        document.name_places(schema);
        document
    }

    /// Walks through all values for `$id` and `$anchor`.
    fn name_places(&mut self, schema: &'s Value) {
        let mut open = vec![(schema, 0usize, "#".to_owned(), true)];
        while let Some((value, mut base, pointer, is_schema)) = open.pop() {
            match value {
                Value::Object(members) => {
                    if is_schema {
                        base = self.name_place(value, members, base, &pointer);
                    }
                    self.bases.insert(value, base);
                    for (name, inner) in members {
                        let is_data = is_schema && DATA.contains(&name.as_str());
                        if !is_data {
                            open.push((inner, base, format!("{pointer}/{}", escaped(name)), true));
                        }
                    }
                }
                Value::Array(all) => {
                    let inner = all.iter().enumerate().map(|(i, inner)| (inner, base, format!("{pointer}/{i}"), true));
                    open.extend(inner);
                }
                _ => {}
            }
        }
    }

    /// Registers the names of a place. Returns the resource that contains it.
    fn name_place(&mut self, value: &'s Value, members: &'s Map<String, Value>, base: usize, pointer: &str) -> usize {
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        let mut base = base;
        let id =
            text("$id").or_else(|| text("id").filter(|id| !self.has_siblings && id.contains([':', '#', '/', '.'])));
        if let Some(id) = id.filter(|_| self.has_siblings || !members.contains_key("$ref")) {
            let uri = uri::resolve(&self.resources[base].uri, id);
            let (uri, fragment) = uri.split_once('#').map_or((uri.as_str(), ""), |(uri, fragment)| (uri, fragment));
            let place = self.place(value, pointer.to_owned());
            if !fragment.is_empty() {
                self.anchors.insert((base, fragment.to_owned()), place);
            } else if place == self.resources[0].root {
                self.resources[0].uri = uri.to_owned();
                self.ids.insert(uri.to_owned(), place);
            } else {
                self.resources.push(Resource { root: place, uri: uri.to_owned() });
                self.ids.entry(uri.to_owned()).or_insert(place);
                base = self.resources.len() - 1;
            }
        }
        for (keyword, is_dynamic) in [("$anchor", false), ("$dynamicAnchor", true)] {
            if let Some(name) = text(keyword) {
                let place = self.place(value, pointer.to_owned());
                self.anchors.insert((base, name.to_owned()), place);
                if is_dynamic {
                    self.dynamic.entry(name.to_owned()).or_default().push(place);
                }
            }
        }
        base
    }

    /// Returns the number of a place.
    pub fn place(&mut self, value: &'s Value, pointer: String) -> PlaceId {
        let next = self.places.len();
        let number = *self.numbers.entry(value).or_insert(next);
        if number == next {
            self.places.push(Place { value, pointer });
        }
        number
    }

    pub fn get(&self, place: PlaceId) -> (&'s Value, &str) {
        (self.places[place].value, &self.places[place].pointer)
    }

    /// Returns the place of a member.
    pub fn member(&mut self, place: PlaceId, keyword: &str, value: &'s Value) -> PlaceId {
        let pointer = format!("{}/{}", self.places[place].pointer, escaped(keyword));
        self.place(value, pointer)
    }

    /// Returns the place of a member of a member.
    pub fn inner(&mut self, place: PlaceId, keyword: &str, name: &str, value: &'s Value) -> PlaceId {
        let pointer = format!("{}/{}/{}", self.places[place].pointer, escaped(keyword), escaped(name));
        self.place(value, pointer)
    }

    /// Returns the place that a `$ref` names.
    ///
    /// # Errors
    /// When the reference names another document or a missing place.
    pub fn find(&mut self, from: PlaceId, reference: &str) -> Result<PlaceId, String> {
        let base = self.bases.get(&std::ptr::from_ref(self.places[from].value)).copied().unwrap_or(0);
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = if path.is_empty() {
            base
        } else {
            let uri = uri::resolve(&self.resources[base].uri, path);
            let uri = uri.split('#').next().unwrap_or_default();
            let place = self.ids.get(uri).copied();
            let place = place.ok_or_else(|| {
                format!(
                    "{reference:?} is another document; only references inside the schema (#/$defs/…) are supported"
                )
            })?;
            self.resources.iter().position(|resource| resource.root == place).unwrap_or(0)
        };
        let root = self.resources[resource].root;
        if fragment.is_empty() {
            return Ok(root);
        }
        if !fragment.starts_with('/') {
            let name = uri::decoded(fragment);
            let place = self
                .anchors
                .get(&(resource, name.clone()))
                .or_else(|| self.anchors.get(&(resource, fragment.to_owned())));
            return place.copied().ok_or_else(|| format!("no $anchor of the schema is called {name:?}"));
        }
        let tries = [
            (root, uri::decoded(fragment)),
            (root, fragment.to_owned()),
            (self.resources[0].root, uri::decoded(fragment)),
        ];
        for (root, pointer) in tries {
            let (value, start) = (self.places[root].value, self.places[root].pointer.clone());
            if let Some(found) = value.pointer(&pointer) {
                return Ok(self.place(found, format!("{start}{pointer}")));
            }
        }
        Err(format!("{reference:?} is not in the schema"))
    }

    /// Returns the place of a `$dynamicRef`, which must be unique in the schema.
    pub fn find_dynamic(&mut self, from: PlaceId, reference: &str) -> Result<PlaceId, String> {
        let name = reference.split_once('#').map_or("", |(_, name)| name);
        if self.dynamic.get(name).is_some_and(|places| places.len() > 1) {
            return Err(format!(
                "{reference:?} may name several places of the schema, which is not supported; use $ref"
            ));
        }
        self.find(from, reference)
    }
}

/// Returns a name as JSON pointers have it.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
