//! Sets of JSON values, one type at a time. A schema is expanded to a list of them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::Value;

use super::decimal::Decimal;
use super::document::PlaceId;
use super::number::Numbers;
use super::text::Pattern;

/// A subschema that holds, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Literal {
    pub place: PlaceId,
    pub holds: bool,
}

impl Literal {
    pub fn of(place: PlaceId) -> Literal {
        Literal { place, holds: true }
    }

    pub fn negated(self) -> Literal {
        Literal { holds: !self.holds, ..self }
    }
}

/// Subschemas that must all hold. An empty set allows any value.
pub(super) type State = BTreeSet<Literal>;

/// Whether a set has values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Some,
    /// No values. `is_exact` tells whether the subschemas allow none either.
    None {
        is_exact: bool,
    },
}

/// Values of one type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Alternative {
    Null,
    Boolean,
    Number(Numbers),
    Text(Texts),
    Array(Arrays),
    Object(Objects),
    /// A list of values of any type.
    Values(Vec<Exact>),
}

/// A value with its canonical text, which equal values share.
#[derive(Clone, Debug)]
pub(super) struct Exact {
    pub value: Rc<Value>,
    pub canonical: String,
}

impl Exact {
    pub fn of(value: &Value) -> Exact {
        let mut text = String::new();
        canonical(value, &mut text);
        Exact { value: Rc::new(value.clone()), canonical: text }
    }
}

impl PartialEq for Exact {
    fn eq(&self, other: &Exact) -> bool {
        self.canonical == other.canonical
    }
}

impl Eq for Exact {}

impl std::hash::Hash for Exact {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.canonical.hash(state);
    }
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Number(number) => out.push_str(&Decimal::of(number).canonical()),
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

/// A set of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Texts {
    pub least: u64,
    pub most: Option<u64>,
    pub patterns: BTreeSet<Pattern>,
    /// The schema's own expressions for those `patterns` that are anchored and match texts short
    /// enough to be listed.
    pub sources: BTreeSet<String>,
    pub excluded: BTreeSet<String>,
}

/// Items that one schema constrains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Items {
    pub prefix: Vec<Literal>,
    pub rest: Option<Literal>,
    /// Whether `unevaluatedItems` counts these items as evaluated.
    pub evaluates: bool,
}

/// Number of items for which a schema must hold (`contains`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Contains {
    pub item: Literal,
    pub least: u64,
    pub most: Option<u64>,
}

/// A set of arrays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Arrays {
    pub least: u64,
    pub most: Option<u64>,
    pub items: Vec<Items>,
    pub contains: Vec<Contains>,
    pub is_unique: bool,
}

/// Members that one schema constrains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Members {
    pub named: Rc<Vec<(String, Literal)>>,
    pub patterned: Vec<(Pattern, String, Literal)>,
    pub rest: Option<Literal>,
    /// Whether `unevaluatedProperties` counts these members as evaluated.
    pub evaluates: bool,
}

/// A set of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Objects {
    pub least: u64,
    pub most: Option<u64>,
    pub members: Vec<Members>,
    pub required: BTreeSet<String>,
    pub names: Vec<Literal>,
}

/// Returns the smaller of two bounds.
pub(super) fn smaller(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

impl Alternative {
    /// Returns all JSON values.
    pub fn all() -> Vec<Alternative> {
        vec![
            Alternative::Null,
            Alternative::Boolean,
            Alternative::Number(Numbers::default()),
            Alternative::Text(Texts::default()),
            Alternative::Array(Arrays::default()),
            Alternative::Object(Objects::default()),
        ]
    }

    /// Returns the values, if the set is a list of values.
    pub fn values(&self) -> Option<&[Exact]> {
        match self {
            Alternative::Values(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the values in both sets, if neither is a list of values; `None` if bounds alone make
    /// the result empty.
    pub fn and(&self, other: &Alternative) -> Option<Alternative> {
        use Alternative::{Array, Boolean, Null, Number, Object, Text};
        let both = match (self, other) {
            (Null, Null) => Null,
            (Boolean, Boolean) => Boolean,
            (Number(a), Number(b)) => Number(a.and(b)),
            (Text(a), Text(b)) => Text(Texts {
                least: a.least.max(b.least),
                most: smaller(a.most, b.most),
                patterns: a.patterns.union(&b.patterns).cloned().collect(),
                sources: a.sources.union(&b.sources).cloned().collect(),
                excluded: a.excluded.union(&b.excluded).cloned().collect(),
            }),
            (Array(a), Array(b)) => Array(Arrays {
                least: a.least.max(b.least),
                most: smaller(a.most, b.most),
                items: union(&a.items, &b.items),
                contains: union(&a.contains, &b.contains),
                is_unique: a.is_unique || b.is_unique,
            }),
            (Object(a), Object(b)) => Object(Objects {
                least: a.least.max(b.least),
                most: smaller(a.most, b.most),
                members: union(&a.members, &b.members),
                required: a.required.union(&b.required).cloned().collect(),
                names: union(&a.names, &b.names),
            }),
            _ => return None,
        };
        (!both.has_no_room()).then_some(both)
    }

    /// Returns whether bounds alone make the set empty.
    pub fn has_no_room(&self) -> bool {
        let crossed = |least: u64, most: Option<u64>| most.is_some_and(|most| least > most);
        match self {
            Alternative::Null | Alternative::Boolean => false,
            Alternative::Number(numbers) => numbers.is_empty(),
            Alternative::Text(texts) => crossed(texts.least, texts.most),
            Alternative::Array(arrays) => crossed(arrays.least, arrays.most),
            Alternative::Object(objects) => crossed(objects.least.max(objects.required.len() as u64), objects.most),
            Alternative::Values(values) => values.is_empty(),
        }
    }
}

/// Returns the elements of both lists without duplicates.
fn union<T: Clone + PartialEq>(a: &[T], b: &[T]) -> Vec<T> {
    let mut all = a.to_vec();
    for one in b {
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
    all
}
