//! Weights of the plan: the formats and tilings of products, and vectors that no file stores.

use ixc_ir::derived::Derived;
use ixc_ir::format::Format;
use ixc_ir::graph::WeightId;
use ixc_ir::plan::{PlanWeight, WeightFile};
use ixc_kernels::tiling::{Tiling, TilingError};

use super::{ArenaRows, Lowering, NO_RANKS, ScheduleError, fit, row_bytes, unsupported};

impl Lowering<'_> {
    /// Returns the format in which kernels read a weight.
    pub(in crate::schedule) fn format_of(&self, w: WeightId) -> Format {
        let weight = &self.module.weights[w.index()];
        weight.choice.layout.unwrap_or(weight.format)
    }

    /// Returns the format of a value in the arena, for a format of the graph.
    pub(in crate::schedule) fn stored_format(&self, format: Format) -> Format {
        format.row().tiles.filter(|_| self.beside && format.is_quantised()).unwrap_or(format)
    }

    /// Returns the format in which products with a weight take their activations.
    pub(in crate::schedule) fn activation(&self, w: WeightId) -> Format {
        let own = self.format_of(w).activation();
        self.module.weights[w.index()].choice.activations.unwrap_or_else(|| self.stored_format(own))
    }

    /// Returns `x` in the activation format of a weight's products. Rows in f32 are quantised once
    /// for all products.
    pub(in crate::schedule) fn factor(&mut self, x: ArenaRows, w: WeightId) -> Result<ArenaRows, ScheduleError> {
        let wanted = self.activation(w);
        match x.format == Format::F32 && wanted != Format::F32 {
            true => self.quantise(x, wanted),
            false => Ok(x),
        }
    }

    /// Returns the tiling of the products with a weight, from its attribute.
    pub(in crate::schedule) fn tiling(&self, w: WeightId) -> Result<Tiling, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        let tile = weight.choice.tile.as_ref().ok_or_else(|| ScheduleError::NotTiled { name: weight.name.clone() })?;
        tile.parse().map_err(|error| self.wrong_tiling(w, error))
    }

    /// Returns the error for a tiling that does not fit its weight.
    pub(in crate::schedule) fn wrong_tiling(&self, w: WeightId, error: TilingError) -> ScheduleError {
        let weight = &self.module.weights[w.index()];
        let tile = weight.choice.tile.clone().unwrap_or_default();
        ScheduleError::Tiling { name: weight.name.clone(), tile, error }
    }

    /// Returns a weight's number in the plan.
    pub(in crate::schedule) fn weight(&mut self, w: WeightId) -> Result<u32, ScheduleError> {
        self.weight_in(w, self.format_of(w))
    }

    /// Returns the number of a weight in its stored format.
    pub(in crate::schedule) fn stored_weight(&mut self, w: WeightId) -> Result<u32, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        if weight.part.is_some() {
            return unsupported("dequantise", format!("@{}, a part of a tensor that no product reads", weight.name));
        }
        self.weight_in(w, weight.stored())
    }

    fn weight_in(&mut self, w: WeightId, format: Format) -> Result<u32, ScheduleError> {
        if let Some(&id) = self.weight_ids.get(&(w, format)) {
            return Ok(id);
        }
        let weight = &self.module.weights[w.index()];
        if weight.choice.shard.is_some() {
            return unsupported("weight", format!("@{} is a slice for a rank; {NO_RANKS}", weight.name));
        }
        let name = || weight.name.clone();
        let place = weight.place.ok_or_else(|| ScheduleError::NoPlace { name: name() })?;
        let (&last, lead) = weight.shape.split_last().ok_or_else(|| ScheduleError::NoPlace { name: name() })?;
        // A part of a tensor is read from the whole tensor, which is in the plan once.
        let tensor = (weight.tensor().to_string(), format, weight.stored(), place);
        if let Some(&id) = weight.part.as_ref().and_then(|_| self.tensors.get(&tensor)) {
            self.weight_ids.insert((w, format), id);
            return Ok(id);
        }
        let (shape, row) = (weight.tensor_shape(), row_bytes(weight.stored(), last)?);
        let lead = &shape[..lead.len()];
        let bytes = lead.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n)).unwrap_or(u64::MAX);
        let derived = (place.file as usize).checked_sub(self.facts.files.len());
        let (file, available) = match derived {
            None => (WeightFile::Source(place.file), self.facts.files.get(place.file as usize).map(|file| file.bytes)),
            Some(number) => (
                WeightFile::Derived(fit("number of derived tensors", number as u64)?),
                self.facts.derived.get(number).and_then(Derived::bytes),
            ),
        };
        let available = available.unwrap_or(0);
        if place.offset.checked_add(bytes).is_none_or(|end| end > available) {
            let (file, offset) = (place.file, place.offset);
            return Err(ScheduleError::Place { name: name(), file, offset, bytes, available });
        }
        let id = fit("number of weights", self.plan_weights.len() as u64)?;
        self.plan_weights.push(PlanWeight {
            name: weight.tensor().to_string(),
            format,
            stored: weight.stored(),
            shape,
            file,
            offset: place.offset,
            bytes,
        });
        self.weight_ids.insert((w, format), id);
        self.tensors.insert(tensor, id);
        Ok(id)
    }

    /// Adds a vector that no file stores. Equal numbers share one vector.
    pub(in crate::schedule) fn made_vector(&mut self, name: String, numbers: &[f32]) -> Result<u32, ScheduleError> {
        let derived = Derived::of_numbers(numbers);
        if let Some((_, id)) = self.made.iter().find(|(of, _)| *of == derived) {
            return Ok(*id);
        }
        let number = fit("number of derived tensors", (self.facts.derived.len() + self.made.len()) as u64)?;
        let id = fit("number of weights", self.plan_weights.len() as u64)?;
        self.plan_weights.push(PlanWeight {
            name,
            format: Format::F32,
            stored: Format::F32,
            shape: vec![derived.columns],
            file: WeightFile::Derived(number),
            offset: 0,
            bytes: row_bytes(Format::F32, derived.columns)?,
        });
        self.made.push((derived, id));
        Ok(id)
    }

    /// Returns the number of a float weight that kernels read in its stored format.
    pub(in crate::schedule) fn vector(&mut self, op: &'static str, w: WeightId) -> Result<u32, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        if weight.format != Format::F32 {
            return unsupported(op, format!("@{} in {}; norms and biases must be f32", weight.name, weight.format));
        }
        self.stored_weight(w)
    }
}
