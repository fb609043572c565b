//! Views of stored tensors, which can be split, reordered and joined without reading their data. A
//! view has a shape, and maps each index to an element of the stored tensor.
//!
//! ```text
//! q.split(0, &[heads, 2, half]).swap(1, 2).join(0).join(0)
//! // NumPy: reshape(heads, 2, half, n).swapaxes(1, 2).reshape(rows, n)
//! ```

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Groups, Order, Piece, Scales, View, Zeros};
use ixc_ir::format::Format;

/// A view of a stored tensor.
#[derive(Clone, Debug)]
pub(super) struct Array {
    extent: Extent,
    element: Option<Element>,
    dtype: &'static str,
    scales: Option<Scales>,
    groups: Option<Box<GroupScales>>,
    /// Additional factor on the numbers (NVFP4). It becomes a separate tensor `.scale`.
    factor: Option<Box<Array>>,
    change: Change,
    /// Format to which scaled numbers are rounded, if the stored type does not determine it.
    rounded: Option<Format>,
    /// Whether elements are four-byte integers. The type of elements is then declared as f32, which
    /// has the same size.
    table: bool,
    first: u64,
    /// Digits of the index along each dimension, as in a mixed-radix number; the slowest digit
    /// comes first. Each digit has a length and a stride.
    dims: Vec<Vec<Axis>>,
}

/// Scales and zero points of a matrix of integers. Views repeat them, so that each integer has its
/// own element; the integers of a group map to the same stored element.
#[derive(Clone, Debug)]
pub(super) struct GroupScales {
    pub scales: Array,
    /// Zero points, and a number to add to each stored zero point.
    pub zeros: Option<(Array, u8)>,
    /// Group of each column, if the file stores it. `scales` and `zeros` then have only the
    /// elements of the first group.
    pub order: Option<ColumnOrder>,
}

/// Group of each column, as the file stores it, and where the scales of each group are.
#[derive(Clone, Debug)]
pub(super) struct ColumnOrder {
    pub order: Array,
    /// Number of groups.
    pub groups: u64,
    /// Distances in elements between consecutive groups: in the scales, and in the zero points.
    pub steps: [u64; 2],
}

impl Array {
    /// Returns a view of a whole stored tensor; `None` if it has no elements or no dimension.
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
            groups: None,
            factor: None,
            change: Change::Keep,
            rounded: None,
            table: false,
            first: 0,
            dims,
        })
    }

    /// Returns a placeholder for a tensor whose type weights cannot have. Any use of its elements
    /// is an error.
    pub(super) fn unreadable(dtype: &'static str) -> Array {
        let extent = Extent { file: 0, offset: 0, bytes: 0 };
        Array {
            extent,
            element: None,
            dtype,
            scales: None,
            groups: None,
            factor: None,
            change: Change::Keep,
            rounded: None,
            table: false,
            first: 0,
            dims: Vec::new(),
        }
    }

    /// Returns a view of four-byte or eight-byte integers that keeps their lower four bytes.
    /// Weights cannot be made from it, but [`Array::table`] can.
    pub(super) fn integers(extent: Extent, dtype: &'static str, bytes: u64, shape: &[u64]) -> Option<Array> {
        let last = shape.len().checked_sub(1)?;
        let words: Vec<u64> = shape.iter().copied().chain([bytes / 4]).collect();
        let array = Array::whole(extent, Element::F32, &words)?.slice(last + 1, 0, 1)?.join(last)?;
        Some(Array { element: None, dtype, ..array })
    }

    /// Returns the integers as a table; `None` for a tensor of another type.
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

    /// Adds scales and zero points to integers. Their views have the shape of the integers.
    pub(super) fn with_group_scales(mut self, groups: GroupScales) -> Array {
        self.groups = Some(Box::new(groups));
        self
    }

    /// Sets the format to which scaled numbers are rounded.
    pub(super) fn rounded_to(self, format: Format) -> Array {
        Array { rounded: Some(format), ..self }
    }

    pub(super) fn with_factor(mut self, factor: Option<Array>) -> Array {
        self.factor = factor.map(Box::new);
        self
    }

    pub(super) fn factor(&self) -> Option<&Array> {
        self.factor.as_deref()
    }

    /// Applies the operation `done` to the scales, zero points and groups of integers, if there are
    /// any.
    fn with_groups(mut self, done: impl Fn(Array) -> Option<Array>) -> Option<Array> {
        let Some(groups) = self.groups.take() else { return Some(self) };
        let GroupScales { scales, zeros, order } = *groups;
        let zeros = match zeros {
            Some((zeros, more)) => Some((done(zeros)?, more)),
            None => None,
        };
        let order = match order {
            Some(ColumnOrder { order, groups, steps }) => Some(ColumnOrder { order: done(order)?, groups, steps }),
            None => None,
        };
        self.groups = Some(Box::new(GroupScales { scales: done(scales)?, zeros, order }));
        Some(self)
    }

    /// Repeats each element of the last dimension `times` times.
    pub(super) fn repeat_elements(mut self, times: u64) -> Option<Array> {
        (times > 0).then_some(())?;
        self.dims.last_mut()?.push(Axis { len: times, stride: 0 });
        Some(self)
    }

    /// Returns the format of the elements of a matrix after scaling. Integers become a block format
    /// only if all integers of a block share a scale, otherwise f16.
    pub(super) fn scaled_format(&self) -> Option<Format> {
        if self.rounded.is_some() {
            return self.rounded;
        }
        let format = self.element?.scaled_format();
        let shared = |groups: &GroupScales| {
            let of = |array: &Array| -> u64 {
                let same =
                    array.dims.last().into_iter().flatten().rev().take_while(|axis| axis.stride == 0 || axis.len == 1);
                same.map(|axis| axis.len).product()
            };
            groups.zeros.iter().map(|(zeros, _)| of(zeros)).fold(of(&groups.scales), u64::min)
        };
        let whole =
            |groups: &GroupScales| groups.order.is_none() && shared(groups).is_multiple_of(format.block_len() as u64);
        Some(if self.groups.as_deref().is_none_or(whole) { format } else { Element::F16.scaled_format() })
    }

    /// Sets the function that is applied to each number when it is read.
    pub(super) fn with_change(mut self, change: Change) -> Array {
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

    /// Splits a dimension into several dimensions. The product of their lengths is its length.
    pub(super) fn split(self, dim: usize, lens: &[u64]) -> Option<Array> {
        let mut this = self.with_groups(|array| array.split(dim, lens))?;
        let mut digits = this.dims.get(dim)?.clone();
        let product =
            |mut lens: std::slice::Iter<'_, u64>| lens.try_fold(1u64, |product, len| product.checked_mul(*len));
        if lens.contains(&0) || product(lens.iter()) != Some(this.len(dim)) {
            return None;
        }
        let mut split: Vec<Vec<Axis>> = Vec::with_capacity(lens.len());
        for &len in lens.iter().rev() {
            let (mut left, mut own) = (len, Vec::new());
            // Takes whole digits, the fastest first, then a part of the next digit.
            while left > 1 {
                let axis = digits.pop()?;
                if left.is_multiple_of(axis.len) {
                    left /= axis.len;
                    own.push(axis);
                } else if axis.len.is_multiple_of(left) {
                    own.push(Axis { len: left, ..axis });
                    digits.push(Axis { len: axis.len / left, stride: axis.stride.checked_mul(left)? });
                    left = 1;
                } else {
                    return None;
                }
            }
            own.reverse();
            split.push(if own.is_empty() { vec![Axis { len: 1, stride: 1 }] } else { own });
        }
        split.reverse();
        this.dims.splice(dim..=dim, split);
        Some(this)
    }

    /// Swaps two dimensions.
    pub(super) fn swap(self, a: usize, b: usize) -> Option<Array> {
        let mut this = self.with_groups(|array| array.swap(a, b))?;
        (a.max(b) < this.dims.len()).then(|| this.dims.swap(a, b))?;
        Some(this)
    }

    /// Joins a dimension and the next dimension to one.
    pub(super) fn join(self, dim: usize) -> Option<Array> {
        let mut this = self.with_groups(|array| array.join(dim))?;
        if dim + 1 >= this.dims.len() {
            return None;
        }
        let next = this.dims.remove(dim + 1);
        this.dims[dim].extend(next);
        // Merges consecutive digits with contiguous strides.
        let mut digits: Vec<Axis> = Vec::new();
        for axis in std::mem::take(&mut this.dims[dim]) {
            match digits.last_mut() {
                Some(before) if Some(before.stride) == axis.stride.checked_mul(axis.len) => {
                    *before = Axis { len: before.len * axis.len, stride: axis.stride };
                }
                _ => digits.push(axis),
            }
        }
        this.dims[dim] = digits;
        Some(this)
    }

    /// Keeps indices `from .. from + len` of a dimension.
    pub(super) fn slice(self, dim: usize, from: u64, len: u64) -> Option<Array> {
        let mut this = self.with_groups(|array| array.slice(dim, from, len))?;
        if len == 0 || from.checked_add(len)? > this.len(dim) {
            return None;
        }
        let (mut from, digits) = (from, this.dims.get_mut(dim)?);
        // A digit that all indices share becomes an offset.
        while let [slowest, faster @ ..] = &mut digits[..] {
            let each: u64 = faster.iter().map(|axis| axis.len).product();
            if from.is_multiple_of(each) && len.is_multiple_of(each) {
                this.first += from / each * slowest.stride;
                slowest.len = len / each;
                return Some(this);
            }
            if from / each != (from + len - 1) / each {
                return None;
            }
            this.first += from / each * slowest.stride;
            from %= each;
            digits.remove(0);
        }
        None
    }

    /// Keeps every second index of a dimension, starting at `from`, which is 0 or 1.
    pub(super) fn every_second(self, dim: usize, from: u64) -> Option<Array> {
        let half = self.len(dim) / 2;
        self.split(dim, &[half, 2])?.slice(dim + 1, from, 1)?.join(dim)
    }

    /// Removes a dimension of length 1, unless it is the only dimension.
    pub(super) fn squeeze(self, dim: usize) -> Option<Array> {
        let mut this = self.with_groups(|array| array.squeeze(dim))?;
        (this.len(dim) == 1 && this.dims.len() > 1).then(|| this.dims.remove(dim))?;
        Some(this)
    }

    /// Returns the digits of the row index and of the column index. The last dimension is the
    /// column; all other dimensions form the row.
    fn axes(&self) -> Option<[Vec<Axis>; 2]> {
        let (columns, rows) = self.dims.split_last()?;
        let kept =
            |axes: &mut dyn Iterator<Item = &Axis>| axes.filter(|axis| axis.len > 1).copied().collect::<Vec<_>>();
        Some([kept(&mut rows.iter().flatten()), kept(&mut columns.iter())])
    }

    /// Returns the distance in elements between consecutive indices of a dimension, if it is
    /// constant.
    pub(super) fn stride(&self, dim: usize) -> Option<u64> {
        match &self.dims.get(dim)?[..] {
            [axis] => Some(axis.stride),
            _ => None,
        }
    }

    /// Returns scales or zero points in the form that a derived tensor needs.
    fn view(&self) -> Option<View> {
        let [rows, columns] = self.axes()?;
        Some(View { extent: self.extent, element: self.element?, first: self.first, rows, columns })
    }

    /// Returns the array as a piece of a derived tensor. The piece has all rows of the array.
    fn piece(&self) -> Option<Piece> {
        let [rows, columns] = self.axes()?;
        let groups = match &self.groups {
            Some(groups) => {
                let zeros = match &groups.zeros {
                    Some((zeros, more)) => Some(Zeros { view: zeros.view()?, more: *more }),
                    None => None,
                };
                let order = match &groups.order {
                    Some(ColumnOrder { groups, steps, order }) => {
                        Some(Order { view: order.view()?, groups: *groups, steps: *steps })
                    }
                    None => None,
                };
                Some(Box::new(Groups { scales: groups.scales.view()?, zeros, order }))
            }
            None => None,
        };
        let (extent, element, first) = (self.extent, self.element?, self.first);
        Some(Piece { extent, element, first, rows, columns, scales: self.scales.clone(), groups, change: self.change })
    }
}

/// Concatenates arrays to a derived tensor. Also returns its dimensions, the row length first. If
/// `is_stacked`, each array becomes a separate matrix; otherwise their rows form one matrix. `None`
/// if shapes or types differ.
pub(super) fn concatenate(arrays: &[Array], is_stacked: bool, format: Format) -> Option<(Derivation, Vec<u64>)> {
    let first = arrays.first()?;
    let element = first.element?;
    let mut shape = first.shape();
    let (tail, head) = (shape.get(1..)?.to_vec(), shape[0]);
    for array in &arrays[1..] {
        let other = array.shape();
        if other.get(1..)? != tail || array.element != first.element || is_stacked && other[0] != head {
            return None;
        }
        if !is_stacked {
            shape[0] += other[0];
        }
    }
    if is_stacked {
        shape.insert(0, arrays.len() as u64);
    }
    *shape.last_mut()? *= element.columns();
    let pieces = arrays.iter().map(Array::piece).collect::<Option<Vec<_>>>()?;
    let columns = *shape.last()?;
    // Vectors are concatenated to one longer vector, so all of them are pieces of one row.
    let pieces_per_row = if tail.is_empty() && !is_stacked { u32::try_from(arrays.len()).ok()? } else { 1 };
    shape.reverse();
    Some((Derivation { format, columns, pieces_per_row, pieces }, shape))
}
