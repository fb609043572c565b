//! Tests of schemas as programs write them. Another validator must accept random texts that each
//! schema allows.
//!
//! `IXC_ALL=1` tests 10,000 schemas. `IXC_TEXTS=FILE` writes each schema with its text to a file,
//! one pair per line.

use std::io::Write;

use ixc_ir::random::Random;
use serde_json::{Map, Value, json};

use crate::support::{matcher, walk};
use crate::validator::is_valid;

/// Number of schemas in an ordinary test run.
const FEW: u64 = 300;
const ALL: u64 = 10_000;
/// Max bytes of a random text.
const LENGTH: usize = 1500;

/// Style of a schema, named after the kind of program that writes it.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    Pydantic,
    Zod3,
    Zod4,
    OpenApi,
    Mcp,
}

struct Author {
    random: Random,
    style: Style,
    definitions: Map<String, Value>,
}

const NAMES: [&str; 14] = [
    "id",
    "name",
    "tags",
    "created_at",
    "user.email",
    "is_active",
    "Größe",
    "a b",
    "path/to",
    "x-y",
    "$type",
    "items",
    "type",
    "é\"q",
];

impl Author {
    fn name(&mut self) -> &'static str {
        self.random.pick(&NAMES)
    }

    fn text(&mut self) -> Value {
        let mut schema = json!({"type": "string"});
        match self.random.below(9) {
            0 => {
                schema["format"] = json!(self.random.pick(&[
                    "date-time",
                    "date",
                    "uuid",
                    "email",
                    "uri",
                    "path",
                    "password",
                    "ipv4",
                    "time",
                    "duration"
                ]))
            }
            1 => {
                schema["pattern"] = json!(self.random.pick(&[
                    r"^[A-Z]{2}\d+$",
                    "^(a|b)+$",
                    r"^\w+@\w+$",
                    "x",
                    r"^[^\s]{1,8}$",
                    r"^#[0-9a-fA-F]{6}$"
                ]))
            }
            2 => {
                schema["minLength"] = json!(self.random.below(3));
                schema["maxLength"] = json!(3 + self.random.below(40));
            }
            3 => return json!({"const": self.random.pick(&["a", "é", "x\ny", ""]), "type": "string"}),
            4 => return json!({"type": "string", "enum": ["red", "green", "b\"lue"]}),
            _ => {}
        }
        schema
    }

    fn number(&mut self) -> Value {
        let mut schema = json!({"type": if self.random.once_in(3) { "number" } else { "integer" }});
        match self.random.below(8) {
            0 => {
                schema["minimum"] = json!(i64::MIN);
                schema["maximum"] = json!(i64::MAX);
            }
            1 => {
                schema["minimum"] = json!(0);
                schema["maximum"] = json!(150);
            }
            2 if self.style == Style::OpenApi => {
                schema["minimum"] = json!(0);
                schema["exclusiveMinimum"] = json!(true);
            }
            2 => schema["exclusiveMinimum"] = json!(0),
            3 => schema["multipleOf"] = json!(self.random.pick(&[5, 10, 7])),
            4 => schema["minimum"] = json!(-1.5),
            5 if self.style == Style::Zod4 => {
                schema["minimum"] = json!(-9007199254740991i64);
                schema["maximum"] = json!(9007199254740991i64);
            }
            6 => schema["format"] = json!(self.random.pick(&["int32", "int64", "double"])),
            _ => {}
        }
        schema
    }

    fn value(&mut self, depth: u32) -> Value {
        let kind = if depth == 0 { self.random.below(5) } else { self.random.below(14) };
        let mut schema = match kind {
            0 | 1 => self.text(),
            2 => self.number(),
            3 => json!({"type": "boolean"}),
            4 => self.listed(),
            5 | 6 => self.object(depth - 1),
            7 => self.array(depth - 1),
            8 => self.optional(depth - 1),
            9 => self.union(depth - 1),
            10 => self.record(depth - 1),
            11 => self.reference(depth - 1),
            12 => self.combined(depth - 1),
            _ => json!({}),
        };
        if self.random.once_in(3) && schema.get("$ref").is_none() {
            schema["description"] = json!("A value.");
            schema["title"] = json!("Value");
        }
        schema
    }

    fn listed(&mut self) -> Value {
        match self.random.below(4) {
            0 => json!({"enum": [1, "one", null, true, 2.5]}),
            1 => json!({"const": 9007199254740993i64}),
            2 => json!({"const": {"kind": "x", "list": [1, {"y": null}]}}),
            _ => json!({"type": "integer", "enum": [1, 2, 3]}),
        }
    }

    fn object(&mut self, depth: u32) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for _ in 0..self.random.below(5) {
            let name = self.name();
            let mut value = self.value(depth);
            if self.random.once_in(4) && value.get("$ref").is_none() {
                value["default"] = Value::Null;
            }
            properties.insert(name.to_owned(), value);
            if !self.random.once_in(3) {
                required.push(json!(name));
            }
        }
        required.dedup();
        let mut schema = json!({"type": "object", "properties": properties});
        let mut seen = Vec::new();
        required.retain(|name| {
            !seen.contains(name) && {
                seen.push(name.clone());
                true
            }
        });
        if !required.is_empty() || self.style == Style::Mcp {
            schema["required"] = Value::Array(required);
        }
        match (self.style, self.random.below(4)) {
            (Style::Zod3 | Style::Zod4, _) | (_, 0) => schema["additionalProperties"] = json!(false),
            (_, 1) => schema["additionalProperties"] = json!(true),
            (Style::Mcp, 2) => schema["additionalProperties"] = json!({}),
            _ => {}
        }
        if self.random.once_in(12) {
            schema["minProperties"] = json!(1);
        }
        if self.random.once_in(15) {
            schema["dependentRequired"] = json!({"id": ["name"]});
        }
        schema
    }

    fn array(&mut self, depth: u32) -> Value {
        if self.random.once_in(5) {
            let prefix = json!([self.value(depth), self.value(depth)]);
            return match self.style {
                Style::Zod3 => json!({"type": "array", "items": prefix, "minItems": 2, "maxItems": 2}),
                _ => json!({"type": "array", "prefixItems": prefix, "minItems": 2, "maxItems": 2}),
            };
        }
        let mut schema = json!({"type": "array", "items": self.value(depth)});
        match self.random.below(6) {
            0 => schema["minItems"] = json!(1),
            1 => schema["maxItems"] = json!(4),
            2 => schema = json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true}),
            3 => schema["contains"] = schema["items"].clone(),
            _ => {}
        }
        schema
    }

    fn optional(&mut self, depth: u32) -> Value {
        let inner = self.value(depth);
        match (self.style, inner.get("type").and_then(Value::as_str)) {
            (Style::Zod3, Some(kind))
                if !inner.get("enum").is_some_and(Value::is_array) && inner.get("const").is_none() =>
            {
                let mut schema = inner.clone();
                schema["type"] = json!([kind, "null"]);
                schema
            }
            _ => json!({"anyOf": [inner, {"type": "null"}]}),
        }
    }

    fn union(&mut self, depth: u32) -> Value {
        if self.random.once_in(2) {
            let parts: Vec<Value> = (0..2 + self.random.below(2)).map(|_| self.value(depth)).collect();
            return json!({"anyOf": parts});
        }
        let variant = |author: &mut Author, kind: &str| {
            let value = author.value(depth);
            json!({"type": "object", "properties": {"kind": {"type": "string", "const": kind}, "value": value}, "required": ["kind"], "additionalProperties": false})
        };
        let parts = json!([variant(self, "a"), variant(self, "b")]);
        json!({"oneOf": parts, "discriminator": {"propertyName": "kind"}})
    }

    fn record(&mut self, depth: u32) -> Value {
        let value = self.value(depth);
        match (self.style, self.random.below(3)) {
            (Style::Zod4, 0) => {
                json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": value})
            }
            (Style::Zod4, 1) => {
                json!({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": value})
            }
            (_, 2) => {
                json!({"type": "object", "patternProperties": {"^[a-z]+$": value}, "additionalProperties": false, "minProperties": self.random.below(3)})
            }
            (_, 1) => {
                json!({"type": "object", "patternProperties": {"^[ab]$": value, "b": {}}, "additionalProperties": false, "maxProperties": 2})
            }
            _ => json!({"type": "object", "additionalProperties": value}),
        }
    }

    fn place(&self) -> &'static str {
        match self.style {
            Style::Pydantic | Style::Zod4 | Style::Mcp => "$defs",
            Style::Zod3 | Style::OpenApi => "definitions",
        }
    }

    fn reference(&mut self, depth: u32) -> Value {
        let names = ["Node", "Box[int]", "a/b~c", "Größe", "Box<string>"];
        let name = self.random.pick(&names);
        if !self.definitions.contains_key(name) {
            self.definitions.insert(name.to_owned(), Value::Null);
            let mut own = self.object(depth);
            if self.random.once_in(2) {
                let inner = json!({"$ref": self.pointer(name)});
                own["properties"]["children"] = json!({"type": "array", "items": inner});
            }
            self.definitions.insert(name.to_owned(), own);
        }
        json!({"$ref": self.pointer(name)})
    }

    fn pointer(&mut self, name: &str) -> String {
        let escaped = name.replace('~', "~0").replace('/', "~1");
        let escaped = escaped
            .replace('<', "%3C")
            .replace('>', "%3E")
            .replace('[', "%5B")
            .replace(']', "%5D")
            .replace('ö', "%C3%B6")
            .replace('ß', "%C3%9F");
        format!("#/{}/{escaped}", self.place())
    }

    fn combined(&mut self, depth: u32) -> Value {
        match self.random.below(5) {
            0 => {
                json!({"allOf": [self.object(depth), {"type": "object", "properties": {"extra": {"type": "integer"}}}]})
            }
            1 => json!({"allOf": [self.reference(depth)], "description": "One."}),
            2 => json!({"not": {"type": "string"}, "type": ["string", "integer", "null"]}),
            3 => json!({"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "v": {}}, "required": ["k", "v"],
                "if": {"properties": {"k": {"const": "a"}}}, "then": {"properties": {"v": self.value(0)}}, "else": {"properties": {"v": self.value(0)}}}),
            _ => {
                let mut parts = json!([self.value(0), self.value(0)]);
                // The other validator treats formats as annotations.
                parts
                    .as_array_mut()
                    .unwrap()
                    .iter_mut()
                    .for_each(|part| drop(part.as_object_mut().unwrap().remove("format")));
                json!({"oneOf": parts})
            }
        }
    }

    fn schema(seed: u64) -> Value {
        let mut random = Random::new(seed);
        let style = random.pick(&[Style::Pydantic, Style::Zod3, Style::Zod4, Style::OpenApi, Style::Mcp]);
        let mut writer = Author { random, style, definitions: Map::new() };
        let mut schema = if writer.random.once_in(6) { writer.value(3) } else { writer.object(3) };
        if !writer.definitions.is_empty() {
            let place = writer.place();
            schema[place] = Value::Object(writer.definitions);
        }
        if style == Style::Zod3 {
            schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
        }
        schema
    }
}

#[test]
fn texts_of_random_schemas_are_valid() {
    let is_all = std::env::var_os("IXC_ALL").is_some_and(|value| !value.is_empty());
    let first: u64 = std::env::var("IXC_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let (mut texts, mut refused, mut long) = (0, 0, 0);
    let mut wrong = Vec::new();
    // The file is for validators in other languages.
    let mut texts_file = std::env::var_os("IXC_TEXTS").map(|path| std::fs::File::create(path).unwrap());
    for seed in first..first + if is_all { ALL } else { FEW } {
        let schema = Author::schema(seed);
        let matcher = match matcher(&schema) {
            Ok(matcher) => matcher,
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                if !text.starts_with("the schema at #") || text.contains("panic") {
                    wrong.push(format!("seed {seed}: {text}\n{schema}"));
                }
                if std::env::var_os("IXC_TEST_VERBOSE").is_some() {
                    println!("seed {seed}: {text}");
                }
                continue;
            }
        };
        let mut random = Random::new(!seed);
        match walk(&matcher, &mut random, LENGTH) {
            Err(stuck) => wrong.push(format!("seed {seed}: stuck: {stuck}\n{schema}")),
            Ok(None) => long += 1,
            Ok(Some(text)) => match serde_json::from_str::<Value>(&text) {
                Err(error) => wrong.push(format!("seed {seed}: {error}: {text}\n{schema}")),
                Ok(document) => {
                    if is_valid(&schema, &schema, &document) {
                        texts += 1;
                    } else {
                        wrong.push(format!("seed {seed}: not valid: {text}\n{schema}"));
                    }
                    if let Some(file) = &mut texts_file {
                        writeln!(file, "{}", json!([schema, text])).unwrap();
                    }
                }
            },
        }
    }
    println!("{texts} valid texts, {long} longer than {LENGTH} bytes, {refused} schemas refused");
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
    assert!(texts > refused + long, "{texts} texts, {refused} refused, {long} long");
}
