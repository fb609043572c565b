//! Second validator of JSON values, which checks one keyword at a time. The official tests check
//! the validator, too.

use serde_json::{Map, Value};

/// Returns whether a value is valid. `format` is ignored, and references must be positions in the
/// schema.
pub fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let members = match schema {
        Value::Bool(flag) => return *flag,
        Value::Object(members) => members,
        _ => panic!("{schema} is no schema"),
    };
    let own = Validator { root, members };
    let all = own.types(value) && own.applied(value);
    all && match value {
        Value::Number(_) => own.number(value),
        Value::String(text) => own.text(text),
        Value::Array(items) => own.array(items),
        Value::Object(named) => own.object(named),
        _ => true,
    }
}

/// Returns whether two values are equal. `1` equals `1.0`.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(_), Value::Number(_)) => compare(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

/// Compares two numbers. The comparison of integers is exact.
fn compare(a: &Value, b: &Value) -> std::cmp::Ordering {
    let integer = |value: &Value| value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().unwrap().total_cmp(&(b.as_f64().unwrap() + 0.0)),
    }
}

struct Validator<'v> {
    root: &'v Value,
    members: &'v Map<String, Value>,
}

impl Validator<'_> {
    fn get(&self, keyword: &str) -> Option<&Value> {
        self.members.get(keyword)
    }

    fn is_valid(&self, schema: &Value, value: &Value) -> bool {
        is_valid(self.root, schema, value)
    }

    fn list(&self, keyword: &str) -> &[Value] {
        self.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn count(&self, keyword: &str) -> Option<u64> {
        self.get(keyword).map(|count| count.as_f64().unwrap() as u64)
    }

    /// Returns whether a count is within the bounds of two keywords.
    fn counted(&self, count: usize, least: &str, most: &str) -> bool {
        self.count(least).is_none_or(|least| count as u64 >= least)
            && self.count(most).is_none_or(|most| count as u64 <= most)
    }

    fn types(&self, value: &Value) -> bool {
        let is = |name: &Value| match name.as_str().unwrap() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{other} is no type"),
        };
        let typed =
            self.get("type").is_none_or(|kind| kind.as_array().map_or_else(|| is(kind), |all| all.iter().any(is)));
        let constant = self.get("const").is_none_or(|own| same(own, value));
        typed && constant && self.get("enum").is_none_or(|_| self.list("enum").iter().any(|own| same(own, value)))
    }

    fn applied(&self, value: &Value) -> bool {
        let target = self.get("$ref").map(|reference| {
            let pointer = reference.as_str().unwrap().trim_start_matches('#');
            let bytes = pointer.as_bytes();
            let (mut at, mut decoded) = (0, Vec::new());
            while at < bytes.len() {
                let hex = if bytes[at] == b'%' { u8::from_str_radix(&pointer[at + 1..at + 3], 16).ok() } else { None };
                decoded.push(hex.unwrap_or(bytes[at]));
                at += if hex.is_some() { 3 } else { 1 };
            }
            self.root.pointer(&String::from_utf8(decoded).unwrap()).unwrap()
        });
        let holds = |part: &Value| self.is_valid(part, value);
        let count = |keyword: &str| self.list(keyword).iter().filter(|part| holds(part)).count();
        let branch = self.get("if").and_then(|part| self.get(if holds(part) { "then" } else { "else" }));
        target.is_none_or(holds)
            && self.list("allOf").iter().all(holds)
            && (self.get("anyOf").is_none() || count("anyOf") > 0)
            && (self.get("oneOf").is_none() || count("oneOf") == 1)
            && !self.get("not").is_some_and(holds)
            && branch.is_none_or(holds)
    }

    fn number(&self, value: &Value) -> bool {
        let is = |keyword: &str, test: &dyn Fn(std::cmp::Ordering) -> bool| {
            self.get(keyword).filter(|bound| bound.is_number()).is_none_or(|bound| test(compare(value, bound)))
        };
        let flagged = |keyword: &str| self.get(keyword) == Some(&Value::Bool(true));
        let (above, below) = (flagged("exclusiveMinimum"), flagged("exclusiveMaximum"));
        let step = self.get("multipleOf").map(|step| {
            if let (Some(value), Some(step)) = (value.as_i64(), step.as_i64()) {
                return value % step == 0;
            }
            let ratio = value.as_f64().unwrap() / step.as_f64().unwrap();
            (ratio - ratio.round()).abs() < 1e-9
        });
        is("minimum", &|order| order.is_gt() || order.is_eq() && !above)
            && is("maximum", &|order| order.is_lt() || order.is_eq() && !below)
            && is("exclusiveMinimum", &|order| order.is_gt())
            && is("exclusiveMaximum", &|order| order.is_lt())
            && step.unwrap_or(true)
    }

    fn text(&self, text: &str) -> bool {
        let pattern = self.get("pattern").is_none_or(|pattern| matches(pattern.as_str().unwrap(), text));
        pattern && self.counted(text.chars().count(), "minLength", "maxLength")
    }

    fn array(&self, items: &[Value]) -> bool {
        let (prefix, rest) = match self.get("items") {
            Some(Value::Array(prefix)) => (prefix.as_slice(), self.get("additionalItems")),
            items => (self.list("prefixItems"), items),
        };
        let each = items.iter().enumerate();
        let contained = self.get("contains").map(|part| {
            let count = items.iter().filter(|item| self.is_valid(part, item)).count();
            count as u64 >= self.count("minContains").unwrap_or(1)
                && self.count("maxContains").is_none_or(|most| count as u64 <= most)
        });
        let is_unique = || items.iter().enumerate().all(|(i, a)| items[..i].iter().all(|b| !same(a, b)));
        each.clone().all(|(i, item)| prefix.get(i).or(rest).is_none_or(|part| self.is_valid(part, item)))
            && self.counted(items.len(), "minItems", "maxItems")
            && contained.unwrap_or(true)
            && (self.get("uniqueItems") != Some(&Value::Bool(true)) || is_unique())
    }

    fn object(&self, named: &Map<String, Value>) -> bool {
        let map = |keyword: &str| self.get(keyword).and_then(Value::as_object);
        let is_member = |(name, value): (&String, &Value)| {
            let own = map("properties").and_then(|all| all.get(name));
            let patterned: Vec<&Value> = map("patternProperties")
                .into_iter()
                .flatten()
                .filter(|(pattern, _)| matches(pattern, name))
                .map(|(_, part)| part)
                .collect();
            let rest = self.get("additionalProperties").filter(|_| own.is_none() && patterned.is_empty());
            own.into_iter().chain(patterned).chain(rest).all(|part| self.is_valid(part, value))
                && self.get("propertyNames").is_none_or(|part| self.is_valid(part, &Value::from(name.as_str())))
        };
        let has = |name: &Value| named.contains_key(name.as_str().unwrap());
        let whole = Value::Object(named.clone());
        let depends = |keyword: &str| {
            map(keyword).into_iter().flatten().filter(|(name, _)| named.contains_key(*name)).all(|(_, part)| match part
            {
                Value::Array(names) => names.iter().all(has),
                part => self.is_valid(part, &whole),
            })
        };
        named.iter().all(is_member)
            && self.list("required").iter().all(has)
            && self.counted(named.len(), "minProperties", "maxProperties")
            && ["dependentRequired", "dependentSchemas", "dependencies"].into_iter().all(depends)
    }
}

/// Returns whether a pattern matches a part of a text.
fn matches(pattern: &str, text: &str) -> bool {
    regex_automata::meta::Regex::new(pattern).unwrap().is_match(text)
}
