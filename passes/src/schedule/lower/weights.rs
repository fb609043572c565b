//! Weights of the plan: the formats and tilings of products, and vectors that no file stores.

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Piece};
use ixc_ir::format::Format;
use ixc_ir::graph::{Place, Shard, Weight, WeightId};
use ixc_ir::plan::{PlanWeight, WeightFile};
use ixc_kernels::tiling::{Tiling, TilingError};

use super::{ArenaRows, Lowering, ScheduleError, fit, row_bytes, unsupported_error};

impl Lowering<'_> {
    /// Returns the format in which kernels read a weight.
    pub(in crate::schedule) fn format_of(&self, w: WeightId) -> Format {
        let weight = &self.module.weights[w.index()];
        weight.choice.layout.unwrap_or(weight.format)
    }

    /// Returns the format in which the arena stores a value of a graph format.
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

    /// Returns the number in the plan of a weight in its stored format.
    pub(in crate::schedule) fn stored_weight(&mut self, w: WeightId) -> Result<u32, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        if weight.part.is_some() {
            return unsupported_error(
                "dequantise",
                format!("@{}, a part of a tensor that no product reads", weight.name),
            );
        }
        self.weight_in(w, weight.stored_format())
    }

    fn weight_in(&mut self, w: WeightId, format: Format) -> Result<u32, ScheduleError> {
        if let Some(&id) = self.weight_ids.get(&(w, format)) {
            return Ok(id);
        }
        let weight = &self.module.weights[w.index()];
        if let Some(shard) = &weight.choice.shard {
            return self.slice_in(w, shard, format);
        }
        let name = || weight.name.clone();
        let place = weight.place.ok_or_else(|| ScheduleError::NoPlace { name: name() })?;
        let (&last, lead) = weight.shape.split_last().ok_or_else(|| ScheduleError::NoPlace { name: name() })?;
        // A part of a tensor is read from the whole tensor, which is in the plan once.
        let tensor = (weight.tensor().to_string(), format, weight.stored_format(), place);
        if let Some(&id) = weight.part.as_ref().and_then(|_| self.tensors.get(&tensor)) {
            self.weight_ids.insert((w, format), id);
            return Ok(id);
        }
        let (shape, row) = (weight.tensor_shape(), row_bytes(weight.stored_format(), last)?);
        let lead = &shape[..lead.len()];
        let bytes = lead.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n)).unwrap_or(u64::MAX);
        let derived = (place.file as usize).checked_sub(self.facts.files.len());
        let (file, available) = match derived {
            None => (WeightFile::Source(place.file), self.facts.files.get(place.file as usize).map(|file| file.bytes)),
            Some(number) => (
                WeightFile::Derived(fit("number of derived tensors", number as u64)?),
                self.facts.derived.get(number).and_then(Derivation::bytes),
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
            stored: weight.stored_format(),
            shape,
            file,
            offset: place.offset,
            bytes,
        });
        self.weight_ids.insert((w, format), id);
        self.tensors.insert(tensor, id);
        Ok(id)
    }

    /// Returns the number in the plan of a rank's slice of a weight. A slice of contiguous bytes is
    /// a smaller range of the tensor. Any other slice is a derived tensor of its blocks.
    fn slice_in(&mut self, w: WeightId, shard: &Shard, format: Format) -> Result<u32, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        let wrong = |problem: &str| unsupported_error("weight", format!("@{}, {problem}", weight.name));
        if weight.part.is_some() {
            return wrong("a rank's slice of a part of a tensor");
        }
        let (name, stored) = (weight.name.clone(), weight.stored_format());
        let place = weight.place.ok_or_else(|| ScheduleError::NoPlace { name: name.clone() })?;
        let (&last, lead) = weight.shape.split_last().ok_or_else(|| ScheduleError::NoPlace { name: name.clone() })?;
        let row = row_bytes(stored, last)?;
        let bytes = lead.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n)).unwrap_or(u64::MAX);
        let from_derived = (place.file as usize).checked_sub(self.facts.files.len());
        let (file, offset) = match (contiguous(weight, shard), from_derived) {
            (Some(offset), None) => (WeightFile::Source(place.file), place.offset.saturating_add(offset)),
            (Some(offset), Some(number)) => {
                let number = fit("number of derived tensors", number as u64)?;
                (WeightFile::Derived(number), place.offset.saturating_add(offset))
            }
            (None, Some(_)) => return wrong("a slice of a tensor that is converted while it is read"),
            (None, None) if stored.rows() > 1 || stored.tail_bytes() > 0 => {
                return wrong("a slice by columns or of several ranges in a format without separate blocks");
            }
            (None, None) => {
                let Some(derived) = blocks_of(weight, shard, place) else {
                    return wrong("a slice whose size does not fit 64 bits");
                };
                let number = (self.facts.derived.len() + self.made.len()) as u64;
                self.made.push((derived, fit("number of weights", self.plan_weights.len() as u64)?));
                (WeightFile::Derived(fit("number of derived tensors", number)?), 0)
            }
        };
        let available = match file {
            WeightFile::Source(file) => self.facts.files.get(file as usize).map(|file| file.bytes),
            WeightFile::Derived(number) => match (number as usize).checked_sub(self.facts.derived.len()) {
                None => self.facts.derived.get(number as usize).and_then(Derivation::bytes),
                Some(made) => self.made.get(made).and_then(|(derived, _)| derived.bytes()),
            },
            WeightFile::Plan | WeightFile::Blocks { .. } => None,
        };
        let available = available.unwrap_or(0);
        if offset.checked_add(bytes).is_none_or(|end| end > available) {
            return Err(ScheduleError::Place { name, file: place.file, offset, bytes, available });
        }
        let id = fit("number of weights", self.plan_weights.len() as u64)?;
        let shape = weight.shape.clone();
        self.plan_weights.push(PlanWeight { name, format, stored, shape, file, offset, bytes });
        self.weight_ids.insert((w, format), id);
        Ok(id)
    }

    /// Adds a vector that is in no file. Vectors with equal numbers are added once.
    pub(in crate::schedule) fn made_vector(&mut self, name: String, numbers: &[f32]) -> Result<u32, ScheduleError> {
        let derived = Derivation::of_numbers(numbers);
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

    /// Returns the number in the plan of a float weight that kernels read in its stored format.
    pub(in crate::schedule) fn vector(&mut self, op: &'static str, w: WeightId) -> Result<u32, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        if weight.format != Format::F32 {
            return unsupported_error(
                op,
                format!("@{} in {}; norms and biases must be f32", weight.name, weight.format),
            );
        }
        self.stored_weight(w)
    }
}

/// Returns the bytes of `n` indices of the dimension that is cut, for one index of the outer
/// dimensions.
fn bytes_of(weight: &Weight, shard: &Shard, n: u64) -> Option<u64> {
    let (last, lead) = weight.shape.split_last()?;
    match lead.get(shard.dim as usize + 1..) {
        Some(inner) => {
            let row = weight.stored_format().row_bytes(*last)?;
            inner.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n))?.checked_mul(n)
        }
        None => weight.stored_format().row_bytes(n),
    }
}

/// Returns how often the cut dimension occurs in the tensor: the product of the outer dimensions.
fn outer(weight: &Weight, shard: &Shard) -> Option<u64> {
    weight.shape.get(..shard.dim as usize)?.iter().try_fold(1u64, |product, &n| product.checked_mul(n))
}

/// Returns the offset of a slice in its tensor, if its bytes are contiguous.
fn contiguous(weight: &Weight, shard: &Shard) -> Option<u64> {
    match (&shard.ranges[..], outer(weight, shard)?) {
        ([range], 1) => bytes_of(weight, shard, range.start),
        _ => None,
    }
}

/// Returns a derived tensor with the unchanged blocks of a slice. Its pieces count in blocks.
fn blocks_of(weight: &Weight, shard: &Shard, place: Place) -> Option<Derivation> {
    let (stored, (&last, lead)) = (weight.stored_format(), weight.shape.split_last()?);
    let element = match Element::from_format(stored) {
        Element::Block(format) => Element::Stored(format),
        plain => plain,
    };
    let (block, dim) = (element.columns(), shard.dim as usize);
    let extent = Extent {
        file: place.file,
        offset: place.offset,
        bytes: bytes_of(weight, shard, shard.of)?.checked_mul(outer(weight, shard)?)?,
    };
    let piece = |first: u64, rows: Vec<Axis>, columns: u64| Piece {
        extent,
        element,
        first,
        rows,
        columns: vec![Axis { len: columns, stride: 1 }],
        scales: None,
        groups: None,
        change: Change::Keep,
    };
    let outer = outer(weight, shard)?;
    if dim == lead.len() {
        // The columns of all ranges are placed next to each other in each row.
        let stride = shard.of / block;
        let columns = |range: &std::ops::Range<u64>| {
            let rows = vec![Axis { len: outer, stride }];
            piece(range.start / block, rows, (range.end - range.start) / block)
        };
        let pieces: Vec<Piece> = shard.ranges.iter().map(columns).collect();
        return Some(Derivation { format: stored, columns: last, pieces_per_row: pieces.len() as u32, pieces });
    }
    let width = last / block;
    let inner: u64 = lead.get(dim + 1..)?.iter().try_fold(1u64, |product, &n| product.checked_mul(n))?;
    let stride = shard.of.checked_mul(inner)?.checked_mul(width)?;
    let rows = |range: &std::ops::Range<u64>, outer: Axis, first: u64| {
        let rows = Axis { len: (range.end - range.start) * inner, stride: width };
        piece(first + range.start * inner * width, vec![outer, rows], width)
    };
    let pieces = match &shard.ranges[..] {
        [range] => vec![rows(range, Axis { len: outer, stride }, 0)],
        ranges => {
            let one = Axis { len: 1, stride: 0 };
            let parts = (0..outer).flat_map(|at| ranges.iter().map(move |range| (at, range)));
            parts.map(|(at, range)| rows(range, one, at * stride)).collect()
        }
    };
    Some(Derivation { format: stored, columns: last, pieces_per_row: 1, pieces })
}
