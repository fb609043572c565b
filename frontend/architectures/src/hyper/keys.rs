//! Keys of an architecture. Each is read together with a check of its range.

use ixc_model_files::gguf::{Array, GgufError, Metadata, Value};

use super::Defaults;

/// Reader of an architecture's keys.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) architecture: &'a str,
    pub(crate) defaults: Defaults,
}

impl Keys<'_> {
    /// Returns whether the file has a key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.metadata.get(&self.name(key)).is_some()
    }

    /// Returns the full name of a key, with the architecture's prefix.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(crate) fn missing(&self, key: &str) -> GgufError {
        self.metadata.missing(&self.name(key), "u32")
    }

    pub(crate) fn in_range(&self, key: &str, found: u64, min: u64, max: u64) -> Result<u64, GgufError> {
        if (min..=max).contains(&found) {
            return Ok(found);
        }
        Err(self.metadata.bad_value(&self.name(key), found, format!("from {min} to {max}")))
    }

    pub(crate) fn optional(&self, key: &str, min: u64, max: u64) -> Result<Option<u64>, GgufError> {
        let found: Option<u64> = self.metadata.read_optional(&self.name(key))?;
        found.map(|found| self.in_range(key, found, min, max)).transpose()
    }

    pub(crate) fn required_size(&self, key: &str, min: u64, max: u64) -> Result<u64, GgufError> {
        self.optional(key, min, max)?.ok_or_else(|| self.missing(key))
    }

    /// Reads a number for each layer. The file has a scalar for all layers, or an array with an
    /// element for each.
    pub(crate) fn per_layer(
        &self,
        key: &str,
        layers: usize,
        min: u64,
        max: u64,
    ) -> Result<Option<Vec<u64>>, GgufError> {
        let name = self.name(key);
        let Some(Value::Array(array)) = self.metadata.get(&name) else {
            return Ok(self.optional(key, min, max)?.map(|value| vec![value; layers]));
        };
        if array.len() != layers {
            let limit = format!("a number or an array of {layers}, one for each layer (block_count)");
            return Err(self.metadata.bad_value(&name, format!("an array of {}", array.len()), limit));
        }
        self.elements(key, array, layers, min, max).map(Some)
    }

    /// Returns the first `layers` elements of an array of integers or bools. The array must have at
    /// least that many.
    fn elements(&self, key: &str, array: &Array, layers: usize, min: u64, max: u64) -> Result<Vec<u64>, GgufError> {
        let name = self.name(key);
        let element = |layer| {
            let found = array.integer(layer).or(array.bool(layer).map(i128::from)).ok_or_else(|| {
                self.metadata.bad_value(&name, Value::Array(array.clone()).type_name(), "an array of integers")
            })?;
            let found = u64::try_from(found).map_err(|_| self.metadata.bad_value(&name, found, "not negative"))?;
            self.in_range(key, found, min, max)
        };
        (0..layers).map(element).collect()
    }

    /// Reads an array with at least one element for each layer. Returns the elements of the first
    /// `layers` layers.
    pub(crate) fn first_per_layer(&self, key: &str, layers: usize, min: u64, max: u64) -> Result<Vec<u64>, GgufError> {
        let name = self.name(key);
        let limit = || format!("an array of {layers} or more, one for each layer (block_count)");
        match self.metadata.get(&name) {
            Some(Value::Array(array)) if array.len() >= layers => self.elements(key, array, layers, min, max),
            Some(Value::Array(array)) => {
                Err(self.metadata.bad_value(&name, format!("an array of {}", array.len()), limit()))
            }
            Some(value) => Err(self.metadata.bad_value(&name, value.type_name(), limit())),
            None => Err(self.metadata.missing(&name, "array of u32")),
        }
    }

    /// Reads a limit for each layer. The file has a number for all layers, or an array with at
    /// least one for each. `None` without the key.
    pub(crate) fn limits(&self, key: &str, layers: usize) -> Result<Option<Vec<f64>>, GgufError> {
        let name = self.name(key);
        let limits: Vec<f32> = match self.metadata.get(&name) {
            None => return Ok(None),
            Some(Value::F32(limit)) => vec![*limit; layers],
            Some(Value::Array(Array::F32(limits))) if limits.len() >= layers => limits[..layers].to_vec(),
            Some(value) => {
                let limit = format!("a float or an array of {layers} floats or more, one for each layer (block_count)");
                return Err(self.metadata.bad_value(&name, value.type_name(), limit));
            }
        };
        match limits.iter().find(|limit| !(limit.is_finite() && **limit >= 0.0)) {
            Some(found) => Err(self.metadata.bad_value(&name, found, "0 or positive numbers")),
            None => Ok(Some(limits.into_iter().map(f64::from).collect())),
        }
    }

    pub(crate) fn float(
        &self,
        key: &str,
        default: f32,
        allowed: fn(f64) -> bool,
        limit: &str,
    ) -> Result<f64, GgufError> {
        let found = self.metadata.read_or(&self.name(key), default)?;
        if found.is_finite() && allowed(found.into()) {
            return Ok(found.into());
        }
        Err(self.metadata.bad_value(&self.name(key), found, limit))
    }

    /// Reads a factor; the default is `usual`. A 0 also means the default, as some converters write
    /// it for an absent key.
    pub(crate) fn factor(&self, key: &str, usual: f64) -> Result<f64, GgufError> {
        let found = self.float(key, 0.0, |x| x >= 0.0, "0 or a positive number")?;
        Ok(if found == 0.0 { usual } else { found })
    }

    /// Reads a limit; 0 means no limit.
    pub(crate) fn cap(&self, key: &str, usual: f64) -> Result<f64, GgufError> {
        self.float(key, usual as f32, |x| x >= 0.0, "0 or a positive number")
    }

    /// Returns whether attention and the network are parallel: both read the layer's input. True
    /// without the key.
    pub(crate) fn parallel(&self) -> Result<bool, GgufError> {
        self.metadata.read_or(&self.name("use_parallel_residual"), true)
    }

    /// Refuses a file whose tokens attend to later tokens. It is for layers that do not support
    /// this.
    pub(crate) fn require_causal(&self) -> Result<(), GgufError> {
        let name = self.name("attention.causal");
        if self.metadata.read_or(&name, self.defaults.causal)? {
            return Ok(());
        }
        let limit =
            "absent or true, because the model has states, windows or scores that only work with causal attention";
        Err(self.metadata.bad_value(&name, false, limit))
    }

    /// Refuses a file whose switch `key` is false, as this is not supported. The key may be absent.
    pub(crate) fn is_true(&self, key: &str) -> Result<(), GgufError> {
        let name = self.name(key);
        match self.metadata.read_or(&name, true)? {
            true => Ok(()),
            false => Err(self.metadata.bad_value(&name, false, "absent or true: nothing else is supported")),
        }
    }

    /// Refuses a file with a value of `key` other than the `neutral` ones, as it requests an
    /// unsupported feature.
    pub(crate) fn neutral(&self, key: &str, neutral: &[f64]) -> Result<(), GgufError> {
        let name = self.name(key);
        let found = match self.metadata.get(&name) {
            None => return Ok(()),
            Some(Value::F32(x)) => f64::from(*x),
            Some(Value::F64(x)) => *x,
            Some(value) => match value.integer() {
                Some(x) => x as f64,
                None => return Err(self.metadata.wrong_type(&name, value, "number")),
            },
        };
        if neutral.contains(&found) {
            return Ok(());
        }
        let words: Vec<_> = neutral.iter().map(f64::to_string).collect();
        Err(self.metadata.bad_value(
            &name,
            found,
            format!("absent or {}: nothing else is supported", words.join(" or ")),
        ))
    }
}
