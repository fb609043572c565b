//! Subschemas of a schema, and the resolution of references to them.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::uri;

/// Number of a subschema in its document.
pub(super) type SubschemaId = usize;

/// Keywords whose values are data, not schemas.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "example"];

/// A subschema, and its position in the schema's document.
#[derive(Debug)]
pub(super) struct Subschema<'s> {
    pub value: &'s Value,
    /// Position as a JSON pointer that begins with `#`, such as `#/properties/name`.
    pub pointer: String,
}

/// Subschemas that were visited, and the names that references can use.
#[derive(Debug)]
pub(super) struct Document<'s> {
    subschemas: Vec<Subschema<'s>>,
    /// Numbers of the subschemas, by the address of their values.
    numbers: HashMap<*const Value, SubschemaId>,
    /// Index of the resource (in `resources`) of each value, by the address of the value.
    bases: HashMap<*const Value, usize>,
    resources: Vec<Resource>,
    /// Subschemas with anchors, by resource and anchor name.
    anchors: HashMap<(usize, String), SubschemaId>,
    dynamic: HashMap<String, Vec<SubschemaId>>,
    ids: HashMap<String, SubschemaId>,
    /// Whether keywords next to `$ref` have an effect, as they do since draft 2019-09.
    pub has_siblings: bool,
}

#[derive(Debug)]
struct Resource {
    root: SubschemaId,
    uri: String,
}

impl<'s> Document<'s> {
    /// Creates the document of a schema, and finds the subschemas that have names.
    pub fn new(schema: &'s Value) -> Document<'s> {
        let dialect = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let is_old = ["draft-03", "draft-04", "draft-06", "draft-07"].iter().any(|draft| dialect.contains(draft));
        let mut document = Document {
            subschemas: Vec::new(),
            numbers: HashMap::new(),
            bases: HashMap::new(),
            resources: Vec::new(),
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
            ids: HashMap::new(),
            has_siblings: !is_old,
        };
        let root = document.subschema_id(schema, "#".to_owned());
        document.resources.push(Resource { root, uri: String::new() });
        document.index_names(schema);
        document
    }

    /// Visits all values to find `$id` and `$anchor`.
    fn index_names(&mut self, schema: &'s Value) {
        let mut open = vec![(schema, 0usize, "#".to_owned(), true)];
        while let Some((value, mut base, pointer, is_schema)) = open.pop() {
            match value {
                Value::Object(members) => {
                    if is_schema {
                        base = self.index_name(value, members, base, &pointer);
                    }
                    self.bases.insert(value, base);
                    for (name, inner) in members {
                        let is_data = is_schema && DATA.contains(&name.as_str());
                        if !is_data {
                            open.push((inner, base, format!("{pointer}/{}", escape_pointer(name)), true));
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

    /// Registers the names of a subschema. Returns the resource that contains it.
    fn index_name(&mut self, value: &'s Value, members: &'s Map<String, Value>, base: usize, pointer: &str) -> usize {
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        let mut base = base;
        let id =
            text("$id").or_else(|| text("id").filter(|id| !self.has_siblings && id.contains([':', '#', '/', '.'])));
        if let Some(id) = id.filter(|_| self.has_siblings || !members.contains_key("$ref")) {
            let uri = uri::resolve(&self.resources[base].uri, id);
            let (uri, fragment) = uri.split_once('#').map_or((uri.as_str(), ""), |(uri, fragment)| (uri, fragment));
            let subschema = self.subschema_id(value, pointer.to_owned());
            if !fragment.is_empty() {
                self.anchors.insert((base, fragment.to_owned()), subschema);
            } else if subschema == self.resources[0].root {
                self.resources[0].uri = uri.to_owned();
                self.ids.insert(uri.to_owned(), subschema);
            } else {
                self.resources.push(Resource { root: subschema, uri: uri.to_owned() });
                self.ids.entry(uri.to_owned()).or_insert(subschema);
                base = self.resources.len() - 1;
            }
        }
        for (keyword, is_dynamic) in [("$anchor", false), ("$dynamicAnchor", true)] {
            if let Some(name) = text(keyword) {
                let subschema = self.subschema_id(value, pointer.to_owned());
                self.anchors.insert((base, name.to_owned()), subschema);
                if is_dynamic {
                    self.dynamic.entry(name.to_owned()).or_default().push(subschema);
                }
            }
        }
        base
    }

    /// Returns the number of a subschema. Assigns one if the subschema is new.
    pub fn subschema_id(&mut self, value: &'s Value, pointer: String) -> SubschemaId {
        let next = self.subschemas.len();
        let number = *self.numbers.entry(value).or_insert(next);
        if number == next {
            self.subschemas.push(Subschema { value, pointer });
        }
        number
    }

    pub fn get(&self, subschema: SubschemaId) -> (&'s Value, &str) {
        (self.subschemas[subschema].value, &self.subschemas[subschema].pointer)
    }

    /// Returns the subschema that is the value of a keyword.
    pub fn member(&mut self, subschema: SubschemaId, keyword: &str, value: &'s Value) -> SubschemaId {
        let pointer = format!("{}/{}", self.subschemas[subschema].pointer, escape_pointer(keyword));
        self.subschema_id(value, pointer)
    }

    /// Returns the subschema with a name in the object that is the value of a keyword.
    pub fn nested_id(&mut self, subschema: SubschemaId, keyword: &str, name: &str, value: &'s Value) -> SubschemaId {
        let pointer =
            format!("{}/{}/{}", self.subschemas[subschema].pointer, escape_pointer(keyword), escape_pointer(name));
        self.subschema_id(value, pointer)
    }

    /// Returns the subschema to which a `$ref` refers.
    ///
    /// # Errors
    /// If the reference names another document or a missing subschema.
    pub fn find(&mut self, from: SubschemaId, reference: &str) -> Result<SubschemaId, String> {
        let base = self.bases.get(&std::ptr::from_ref(self.subschemas[from].value)).copied().unwrap_or(0);
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = if path.is_empty() {
            base
        } else {
            let uri = uri::resolve(&self.resources[base].uri, path);
            let uri = uri.split('#').next().unwrap_or_default();
            let subschema = self.ids.get(uri).copied();
            let subschema = subschema.ok_or_else(|| {
                format!(
                    "{reference:?} is another document; only references inside the schema (#/$defs/…) are supported"
                )
            })?;
            self.resources.iter().position(|resource| resource.root == subschema).unwrap_or(0)
        };
        let root = self.resources[resource].root;
        if fragment.is_empty() {
            return Ok(root);
        }
        if !fragment.starts_with('/') {
            let name = uri::percent_decode(fragment);
            let subschema = self
                .anchors
                .get(&(resource, name.clone()))
                .or_else(|| self.anchors.get(&(resource, fragment.to_owned())));
            return subschema.copied().ok_or_else(|| format!("no $anchor of the schema is called {name:?}"));
        }
        let tries = [
            (root, uri::percent_decode(fragment)),
            (root, fragment.to_owned()),
            (self.resources[0].root, uri::percent_decode(fragment)),
        ];
        for (root, pointer) in tries {
            let (value, start) = (self.subschemas[root].value, self.subschemas[root].pointer.clone());
            if let Some(found) = value.pointer(&pointer) {
                return Ok(self.subschema_id(found, format!("{start}{pointer}")));
            }
        }
        Err(format!("the schema has no part {reference:?}; expected a pointer such as #/$defs/NAME"))
    }

    /// Returns the subschema to which a `$dynamicRef` refers. Its name must be unique in the
    /// schema.
    pub fn find_dynamic(&mut self, from: SubschemaId, reference: &str) -> Result<SubschemaId, String> {
        let name = reference.split_once('#').map_or("", |(_, name)| name);
        if self.dynamic.get(name).is_some_and(|subschemas| subschemas.len() > 1) {
            return Err(format!("{reference:?} matches several parts of the schema, which is not supported; use $ref"));
        }
        self.find(from, reference)
    }
}

/// Returns a name with the characters escaped that JSON pointers reserve.
pub(crate) fn escape_pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
