//! Mutable lists for templates. Lists of minijinja are immutable, but templates keep lists in a
//! namespace and change them: `ns.ids.append(id)`, `ns.ids.pop(0)`.
//!
//! A list that is passed to `namespace` becomes a [`List`]. A [`List`] accepts only values that
//! contain no other values, so that no list can contain itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, functions};

/// Mutable list in a namespace.
#[derive(Debug)]
struct List {
    values: Mutex<Vec<Value>>,
}

impl List {
    fn values(&self) -> MutexGuard<'_, Vec<Value>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.values().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.values().len())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, arguments: &[Value]) -> Result<Value, Error> {
        let invalid = |what: &str| Err(Error::new(ErrorKind::InvalidOperation, what.to_owned()));
        let mut values = self.values();
        match (method, arguments) {
            ("append", [value]) => match value.kind() {
                ValueKind::String | ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                    values.push(value.clone());
                    Ok(Value::from(()))
                }
                kind => invalid(&format!("append only supports strings and numbers here, not a {kind}")),
            },
            ("pop", []) => values.pop().map_or_else(|| invalid("pop from an empty list"), Ok),
            ("pop", [place]) => match i64::try_from(place.clone()) {
                Ok(place) => {
                    let from_end = if place < 0 { values.len() as i64 } else { 0 };
                    match usize::try_from(place + from_end) {
                        Ok(place) if place < values.len() => Ok(values.remove(place)),
                        _ => invalid("pop index is out of range"),
                    }
                }
                Err(error) => Err(error),
            },
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// Implements `namespace(…)`, whose lists are mutable.
pub fn namespace(values: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let Some(values) = values.map(ValueOrKwargs::into_value) else { return functions::namespace(None) };
    if values.kind() != ValueKind::Map {
        return functions::namespace(Some(values.into()));
    }
    let mut members = Vec::new();
    for name in values.try_iter()? {
        let mut value = values.get_item(&name)?;
        if value.kind() == ValueKind::Seq {
            let elements = value.try_iter()?.collect();
            value = Value::from_object(List { values: Mutex::new(elements) });
        }
        members.push((name, value));
    }
    functions::namespace(Some(Value::from_pairs(members).into()))
}
