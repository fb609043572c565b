//! Stored tensors, taken apart and put together again without reading them: shapes, and where each element is.
//!
//! ```text
//! q.split(0, &[heads, 2, half]).swap(1, 2).join(0).join(0)      // NumPy: reshape(heads, 2, half, n).swapaxes(1, 2).reshape(rows, n)
//! ```

use ixc_ir::derived::{Axis, Change, Derived, Element, Extent, Piece, Scales};
use ixc_ir::format::Format;

/// A view of a stored tensor.
#[derive(Clone, Debug)]
pub(super) struct Array {
    extent: Extent,
    element: Option<Element>,
    dtype: &'static str,
    scales: Option<Scales>,
    change: Change,
    /// Whether elements are integers, in the bytes of as many floats.
    table: bool,
    first: u64,
    /// Digits of the index along each dimension, the slowest first.
    dims: Vec<Vec<Axis>>,
}

impl Array {
    /// A tensor as it is stored; `None` where it has no elements, or no dimension.
    pub(super) fn whole(extent: Extent, element: Element, shape: &[u64]) -> Option<Array> {
        if shape.contains(&0) {
            return None;
        }
        let mut stride = 1u64;
        let mut dims: Vec<Vec<Axis>> = Vec::with_capacity(shape.len());
        for &len in shape.iter().rev() {
            dims.push(vec![Axis { len, stride }]);
            stride = stride.checked_mul(len)?;
        }
        dims.reverse();
        Some(Array {
            extent,
            element: Some(element),
            dtype: "",
            scales: None,
            change: Change::Keep,
            table: false,
            first: 0,
            dims,
        })
    }

    /// One whose elements are of a type that weights are not read from.
    pub(super) fn unreadable(dtype: &'static str) -> Array {
        let extent = Extent { file: 0, offset: 0, bytes: 0 };
        Array {
            extent,
            element: None,
            dtype,
            scales: None,
            change: Change::Keep,
            table: false,
            first: 0,
            dims: Vec::new(),
        }
    }

    /// One of integers of four or eight bytes, of which the lower four are taken: no weight is read from it, but a table may be.
    pub(super) fn integers(extent: Extent, dtype: &'static str, bytes: u64, shape: &[u64]) -> Option<Array> {
        let last = shape.len().checked_sub(1)?;
        let words: Vec<u64> = shape.iter().copied().chain([bytes / 4]).collect();
        let array = Array::whole(extent, Element::F32, &words)?.slice(last + 1, 0, 1)?.join(last)?;
        Some(Array { element: None, dtype, ..array })
    }

    /// Its integers, where it has such.
    pub(super) fn table(self) -> Option<Array> {
        let integers = self.element.is_none() && !self.dims.is_empty();
        integers.then_some(Array { element: Some(Element::F32), table: true, ..self })
    }

    pub(super) fn is_table(&self) -> bool {
        self.table
    }

    pub(super) fn set_scales(&mut self, scales: Scales) {
        self.scales = Some(scales);
    }

    /// With numbers that something becomes of.
    pub(super) fn changed(mut self, change: Change) -> Array {
        self.change = change;
        self
    }

    pub(super) fn change(&self) -> Change {
        self.change
    }

    pub(super) fn element(&self) -> Result<Element, &'static str> {
        self.element.ok_or(self.dtype)
    }

    pub(super) fn shape(&self) -> Vec<u64> {
        self.dims.iter().map(|digits| digits.iter().map(|axis| axis.len).product()).collect()
    }

    pub(super) fn rank(&self) -> usize {
        self.dims.len()
    }

    pub(super) fn len(&self, dim: usize) -> u64 {
        self.shape().get(dim).copied().unwrap_or(0)
    }

    /// A dimension as several, whose product it is.
    pub(super) fn split(mut self, dim: usize, lens: &[u64]) -> Option<Array> {
        let [axis] = self.dims.get(dim)?[..] else { return None };
        if lens.contains(&0) || lens.iter().try_fold(1u64, |product, len| product.checked_mul(*len)) != Some(axis.len) {
            return None;
        }
        let mut stride = axis.stride;
        let mut split: Vec<Vec<Axis>> = Vec::with_capacity(lens.len());
        for &len in lens.iter().rev() {
            split.push(vec![Axis { len, stride }]);
            stride = stride.checked_mul(len)?;
        }
        split.reverse();
        self.dims.splice(dim..=dim, split);
        Some(self)
    }

    /// Two dimensions in each other's place.
    pub(super) fn swap(mut self, a: usize, b: usize) -> Option<Array> {
        (a.max(b) < self.dims.len()).then(|| self.dims.swap(a, b))?;
        Some(self)
    }

    /// A dimension and the next as one.
    pub(super) fn join(mut self, dim: usize) -> Option<Array> {
        if dim + 1 >= self.dims.len() {
            return None;
        }
        let next = self.dims.remove(dim + 1);
        self.dims[dim].extend(next);
        // Digits that count on are one.
        let mut digits: Vec<Axis> = Vec::new();
        for axis in std::mem::take(&mut self.dims[dim]) {
            match digits.last_mut() {
                Some(before) if Some(before.stride) == axis.stride.checked_mul(axis.len) => {
                    *before = Axis { len: before.len * axis.len, stride: axis.stride };
                }
                _ => digits.push(axis),
            }
        }
        self.dims[dim] = digits;
        Some(self)
    }

    /// Indices `from .. from + len` of a dimension.
    pub(super) fn slice(mut self, dim: usize, from: u64, len: u64) -> Option<Array> {
        let [axis] = &mut self.dims.get_mut(dim)?[..] else { return None };
        if len == 0 || from.checked_add(len)? > axis.len {
            return None;
        }
        self.first += from * axis.stride;
        axis.len = len;
        Some(self)
    }

    /// Every second index of a dimension, from 0 or 1 on.
    pub(super) fn every_second(self, dim: usize, from: u64) -> Option<Array> {
        let half = self.len(dim) / 2;
        self.split(dim, &[half, 2])?.slice(dim + 1, from, 1)?.join(dim)
    }

    /// Without dimensions of length 1 but the last.
    pub(super) fn squeeze(mut self, dim: usize) -> Option<Array> {
        (self.len(dim) == 1 && self.dims.len() > 1).then(|| self.dims.remove(dim))?;
        Some(self)
    }

    /// As a part of a derived tensor's rows.
    fn piece(&self) -> Option<Piece> {
        let (columns, rows) = self.dims.split_last()?;
        let kept =
            |axes: &mut dyn Iterator<Item = &Axis>| axes.filter(|axis| axis.len > 1).copied().collect::<Vec<_>>();
        Some(Piece {
            extent: self.extent,
            element: self.element?,
            first: self.first,
            rows: kept(&mut rows.iter().flatten()),
            columns: kept(&mut columns.iter()),
            scales: self.scales,
            change: self.change,
        })
    }
}

/// A tensor of arrays, one behind the other, and its dimensions in `ne` order. Of several with `stacked`, each is a matrix; without it, their rows are
/// those of one. `None` where they do not fit.
pub(super) fn derived(arrays: &[Array], stacked: bool, format: Format) -> Option<(Derived, Vec<u64>)> {
    let first = arrays.first()?;
    let element = first.element?;
    let mut shape = first.shape();
    let (tail, head) = (shape.get(1..)?.to_vec(), shape[0]);
    for array in &arrays[1..] {
        let other = array.shape();
        if other.get(1..)? != tail || array.element != first.element || stacked && other[0] != head {
            return None;
        }
        if !stacked {
            shape[0] += other[0];
        }
    }
    if stacked {
        shape.insert(0, arrays.len() as u64);
    }
    *shape.last_mut()? *= element.columns();
    let pieces = arrays.iter().map(Array::piece).collect::<Option<Vec<_>>>()?;
    let columns = *shape.last()?;
    shape.reverse();
    Some((Derived { format, columns, beside: 1, pieces }, shape))
}
