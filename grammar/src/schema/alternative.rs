//! Sets of JSON values of one type. The set of a schema is a list of them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::Value;

use super::decimal::Decimal;
use super::document::SubschemaId;
use super::number::NumberSet;
use super::text::Pattern;

/// A subschema, and whether it must hold or must not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Literal {
    pub subschema: SubschemaId,
    pub holds: bool,
}

impl Literal {
    pub fn positive(subschema: SubschemaId) -> Literal {
        Literal { subschema, holds: true }
    }

    pub fn negate(self) -> Literal {
        Literal { holds: !self.holds, ..self }
    }
}

/// Set of subschemas that must all hold. An empty set allows any value.
pub(super) type Conjunction = BTreeSet<Literal>;

/// Result of the check whether a set has values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Some,
    /// The set has no values. `is_exact` is set if the subschemas allow no value either.
    None {
        is_exact: bool,
    },
}

/// Set of values of one type, or a list of values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Alternative {
    Null,
    Boolean,
    Number(NumberSet),
    Text(TextSet),
    Array(ArraySet),
    Object(ObjectSet),
    /// A list of values, which may be of any type.
    Values(Vec<ExactValue>),
}

/// A value with its canonical text. Equal values have the same canonical text.
#[derive(Clone, Debug)]
pub(super) struct ExactValue {
    pub value: Rc<Value>,
    pub canonical: String,
}

impl ExactValue {
    pub fn from_value(value: &Value) -> ExactValue {
        let mut text = String::new();
        canonical(value, &mut text);
        ExactValue { value: Rc::new(value.clone()), canonical: text }
    }
}

impl PartialEq for ExactValue {
    fn eq(&self, other: &ExactValue) -> bool {
        self.canonical == other.canonical
    }
}

impl Eq for ExactValue {}

impl std::hash::Hash for ExactValue {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.canonical.hash(state);
    }
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Number(number) => out.push_str(&Decimal::from_number(number).canonical()),
        Value::Array(all) => {
            out.push('[');
            for inner in all {
                canonical(inner, out);
                out.push(',');
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (name, inner) in members.iter().collect::<BTreeMap<_, _>>() {
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                canonical(inner, out);
                out.push(',');
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Set of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TextSet {
    pub min: u64,
    pub max: Option<u64>,
    pub patterns: BTreeSet<Pattern>,
    /// Expressions as written in the schema, for some of the `patterns`. These patterns are
    /// anchored and match texts short enough to be listed.
    pub sources: BTreeSet<String>,
    pub excluded: BTreeSet<String>,
}

/// Constraints of one schema on the items of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Items {
    pub prefix: Vec<Literal>,
    pub rest: Option<Literal>,
    /// Whether these items count as evaluated for `unevaluatedItems`.
    pub evaluates: bool,
}

/// Bounds on the number of items that satisfy a schema (`contains`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Contains {
    pub item: Literal,
    pub min: u64,
    pub max: Option<u64>,
}

/// Set of arrays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ArraySet {
    pub min: u64,
    pub max: Option<u64>,
    pub items: Vec<Items>,
    pub contains: Vec<Contains>,
    pub is_unique: bool,
}

/// Constraints of one schema on the members of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Members {
    pub named: Rc<Vec<(String, Literal)>>,
    pub patterned: Vec<(Pattern, String, Literal)>,
    pub rest: Option<Literal>,
    /// Whether these members count as evaluated for `unevaluatedProperties`.
    pub evaluates: bool,
}

/// Set of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ObjectSet {
    pub min: u64,
    pub max: Option<u64>,
    pub members: Vec<Members>,
    pub required: BTreeSet<String>,
    pub names: Vec<Literal>,
}

/// Returns the smaller of two upper bounds, where `None` means no bound.
pub(super) fn smaller(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

impl Alternative {
    /// Returns sets that together have all JSON values.
    pub fn all() -> Vec<Alternative> {
        vec![
            Alternative::Null,
            Alternative::Boolean,
            Alternative::Number(NumberSet::default()),
            Alternative::Text(TextSet::default()),
            Alternative::Array(ArraySet::default()),
            Alternative::Object(ObjectSet::default()),
        ]
    }

    /// Returns the list of values if the set is one.
    pub fn values(&self) -> Option<&[ExactValue]> {
        match self {
            Alternative::Values(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the values in both sets. Neither set may be a list of values. Returns `None` if the
    /// bounds leave no value.
    pub fn and(&self, other: &Alternative) -> Option<Alternative> {
        use Alternative::{Array, Boolean, Null, Number, Object, Text};
        let both = match (self, other) {
            (Null, Null) => Null,
            (Boolean, Boolean) => Boolean,
            (Number(a), Number(b)) => Number(a.and(b)),
            (Text(a), Text(b)) => Text(TextSet {
                min: a.min.max(b.min),
                max: smaller(a.max, b.max),
                patterns: a.patterns.union(&b.patterns).cloned().collect(),
                sources: a.sources.union(&b.sources).cloned().collect(),
                excluded: a.excluded.union(&b.excluded).cloned().collect(),
            }),
            (Array(a), Array(b)) => Array(ArraySet {
                min: a.min.max(b.min),
                max: smaller(a.max, b.max),
                items: union(&a.items, &b.items),
                contains: union(&a.contains, &b.contains),
                is_unique: a.is_unique || b.is_unique,
            }),
            (Object(a), Object(b)) => Object(ObjectSet {
                min: a.min.max(b.min),
                max: smaller(a.max, b.max),
                members: union(&a.members, &b.members),
                required: a.required.union(&b.required).cloned().collect(),
                names: union(&a.names, &b.names),
            }),
            _ => return None,
        };
        (!both.has_no_room()).then_some(both)
    }

    /// Returns whether the bounds already show that the set is empty.
    pub fn has_no_room(&self) -> bool {
        let crossed = |min: u64, max: Option<u64>| max.is_some_and(|max| min > max);
        match self {
            Alternative::Null | Alternative::Boolean => false,
            Alternative::Number(numbers) => numbers.is_empty(),
            Alternative::Text(texts) => crossed(texts.min, texts.max),
            Alternative::Array(arrays) => crossed(arrays.min, arrays.max),
            Alternative::Object(objects) => crossed(objects.min.max(objects.required.len() as u64), objects.max),
            Alternative::Values(values) => values.is_empty(),
        }
    }
}

/// Returns the elements of both lists, without duplicates.
fn union<T: Clone + PartialEq>(a: &[T], b: &[T]) -> Vec<T> {
    let mut all = a.to_vec();
    for one in b {
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
    all
}
