//! Matrices of integers in which each group of columns of a row has a scale and an optional zero
//! point. GPTQ, AWQ and compressed-tensors store their results in this form.
//!
//! ```text
//! x[row, column] = scale[row, column] * (integer[row, column] - zero[row, column])
//! ```
//!
//! Integers, scales and zero points are each a [view](View) of a stored tensor. Its axes may have
//! any order; columns often come before rows. In the view of scales, columns that share a scale are
//! an axis with the stride 0. If these groups are whole blocks, integers are moved into blocks of a
//! format that has the same numbers:
//!
//! | integers | format |
//! | --- | --- |
//! | four bits | `q4_0`: `d * (q - 8)` |
//! | four bits with zeros | `q4_1`: `d * q + m`, where `m` is the nearest half of `-d * zero` |
//! | eight bits | `q8_0`: `d * q` |
//! | two bits, of three values | `tq2_0`: `d * (q - 1)` |
//!
//! A scale that is not an f16 becomes the nearest f16. All other values stay exact. If groups are
//! not whole blocks, each integer times its scale becomes the nearest number of a float format.
//! This happens if a matrix is transposed, or if columns of a group are not neighbours.
//!
//! A file may also store a group number for each column ([`Order`]). Quantisers that group columns
//! by importance (GPTQ's `desc_act`) do not reorder the stored columns.

use std::ops::{Add, Range};

use serde::{Deserialize, Serialize};

use super::integers::{Integers, nibble};
use super::{Axis, Change, Element, Extent, Fetch, Part, Piece, Slots, at, last, len, store};
use crate::format::Format;

/// Number of columns that are read at a time.
const COLUMNS: u64 = 512;
/// Maximum number of rows that are read together.
const ROWS: u64 = 64;
/// Maximum distance, in elements, between the first and the last integer that are read together.
const SPAN: u64 = 1 << 20;
/// Maximum number of groups in an [`Order`]: the reader keeps a scale for each group in memory.
const MAX_GROUPS: u64 = 1 << 20;

/// A strided view of a stored tensor: scales or zeros, with an element for each row and column of
/// the matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// The stored tensor.
    pub extent: Extent,
    /// Storage of the tensor's elements.
    pub element: Element,
    /// Index of the element at row 0 and column 0.
    pub first: u64,
    /// Digits of a row's number in a mixed base, the slowest digit first.
    pub rows: Vec<Axis>,
    /// Digits of a column's number in a mixed base, the slowest digit first.
    pub columns: Vec<Axis>,
}

/// Scales and zero points of a matrix of integers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Scales, stored as numbers of two or four bytes.
    pub scales: View,
    /// Zero points, if each group has one.
    pub zeros: Option<Zeros>,
    /// Group of each column, if the file stores it. The views of scales and zero points then locate
    /// those of group 0.
    pub order: Option<Order>,
}

/// Group of each row and column of a matrix, as stored in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Group numbers: integers of four bytes. The view's element type is [`Element::F32`], because
    /// it has the same size.
    pub view: View,
    /// Number of groups. Each stored group number must be less.
    pub groups: u64,
    /// Distances from one group to the next, in elements: of scales, then of zero points.
    pub steps: [u64; 2],
}

/// Zero points, which are subtracted from the stored integers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Zeros {
    /// Location of the zero points, which are stored as four-bit integers.
    pub view: View,
    /// Number that is added to a stored zero point, modulo 16. Early GPTQ files store each zero
    /// point minus one.
    pub more: u8,
}

impl View {
    /// Reads the bytes of an element.
    fn read(&self, element: u64, out: &mut [u8; 4], fetch: &Fetch<'_>) -> Option<()> {
        let (from, bytes) = self.element.span(element, 1)?;
        let place = self.extent.part(from, bytes)?;
        fetch(self.extent.file, place, out.get_mut(..bytes as usize)?).then_some(())
    }

    /// Returns the length of aligned sequences of columns that share an element of the view.
    fn run_length(&self) -> u64 {
        let same = self.columns.iter().rev().take_while(|axis| axis.stride == 0);
        same.fold(1, |product: u64, axis| product.saturating_mul(axis.len))
    }

    /// Returns the problem of a view for a matrix of `rows` and `columns`, or `None`. The last
    /// group of an [`Order`] lies `beyond` elements after the view's last element; it must be
    /// inside the tensor too.
    fn wrong(&self, rows: u64, columns: u64, beyond: Option<u64>) -> Option<&'static str> {
        if self.rows.len().max(self.columns.len()) > super::MAX_AXES {
            return Some("too many axes of its groups");
        }
        if self.rows.iter().chain(&self.columns).any(|axis| axis.len == 0) {
            return Some("an axis of its groups has length 0");
        }
        if (len(&self.rows), len(&self.columns)) != (Some(rows), Some(columns)) {
            return Some("scales or zeros do not match the rows or columns");
        }
        let last = last(self.first, &self.rows, &self.columns);
        let end = last.and_then(|last| last.checked_add(beyond?)?.checked_add(1));
        match end.and_then(|elements| self.element.bytes_of(elements)) {
            Some(bytes) if bytes <= self.extent.bytes => None,
            _ => Some("scales or zeros are outside of their tensor"),
        }
    }
}

impl Groups {
    /// Returns the extents of the stored tensors: scales, zero points and group numbers.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.views().into_iter().flatten().map(|view| view.extent)
    }

    /// Returns the views of scales, zeros and the order.
    fn views(&self) -> [Option<&View>; 3] {
        [Some(&self.scales), self.zeros.as_ref().map(|zeros| &zeros.view), self.order.as_ref().map(|order| &order.view)]
    }

    /// Returns the length of aligned sequences of columns that share a scale and a zero point.
    pub fn run_length(&self) -> u64 {
        if self.order.is_some() {
            return 1;
        }
        let of_zeros = self.zeros.as_ref().map_or(u64::MAX, |zeros| zeros.view.run_length());
        self.scales.run_length().min(of_zeros)
    }

    /// Reads a scale and a zero point, given by their element indices.
    fn numbers(&self, elements: GroupElements, fetch: &Fetch<'_>) -> Option<(f32, Option<u8>)> {
        let GroupElements { scale, zero } = elements;
        let (mut stored, mut number) = ([0; 4], [0f32]);
        self.scales.read(scale, &mut stored, fetch)?;
        self.scales.element.floats(&stored, &mut number);
        let Some(Zeros { view, more }) = &self.zeros else { return Some((number[0], None)) };
        view.read(zero, &mut stored, fetch)?;
        Some((number[0], Some(nibble(stored[0], zero).wrapping_add(*more) & 15)))
    }

    /// Applies `of` to the view of scales and to the view of zero points, and returns the two
    /// element indices.
    fn elements(&self, of: impl Fn(&View) -> u64) -> GroupElements {
        GroupElements { scale: of(&self.scales), zero: self.zeros.as_ref().map_or(0, |zeros| of(&zeros.view)) }
    }
}

/// Element indices of the scale and the zero point of a group, each in its own view.
#[derive(Clone, Copy, PartialEq, Eq)]
struct GroupElements {
    scale: u64,
    /// Index of the zero point; unused if the groups have no zero points.
    zero: u64,
}

impl Add for GroupElements {
    type Output = GroupElements;

    fn add(self, more: GroupElements) -> GroupElements {
        GroupElements { scale: self.scale + more.scale, zero: self.zero + more.zero }
    }
}

/// Returns the problem of a piece of integers with groups, or `None`. The caller checks that the
/// integers end inside their tensor, as for other elements.
pub(super) fn wrong(piece: &Piece, integers: Integers, format: Format) -> Option<&'static str> {
    let Some(groups) = &piece.groups else { return Some("integers lack group scales") };
    let is_float = [Format::F32, Format::F16, Format::Bf16].contains(&format);
    if !is_float && format != integers.format() || piece.change != Change::Keep || piece.scales.is_some() {
        return Some("integers do not match the format");
    }
    if ![Element::F32, Element::F16, Element::Bf16].contains(&groups.scales.element) {
        return Some("scales must be numbers of two or four bytes");
    }
    let zeros = groups.zeros.as_ref();
    let right = (integers == Integers::FourFromZeros).then_some(Element::Integer(Integers::Four));
    if zeros.map(|zeros| zeros.view.element) != right {
        return Some("zero points that are not four-bit integers, missing, or not expected");
    }
    let columns = piece.column_count().unwrap_or(0);
    let order = groups.order.as_ref();
    if order.is_some_and(|order| order.view.element != Element::F32 || !(1..=MAX_GROUPS).contains(&order.groups)) {
        return Some("an order without groups, with too many groups, or without four-byte integers");
    }
    // Distance from group 0 to the last group, in elements.
    let beyond = |of: usize| order.map_or(Some(0), |order| (order.groups - 1).checked_mul(order.steps[of]));
    let views = groups.views().into_iter().zip([beyond(0), beyond(1), Some(0)]);
    let view = views.filter_map(|(view, beyond)| view?.wrong(piece.row_count(), columns, beyond)).next();
    let whole = is_float || groups.run_length().is_multiple_of(format.block_len() as u64);
    view.or((!whole).then_some("groups must be whole blocks"))
}

/// Returns the number of rows from `row` on that are read together: one if the stored integers of a
/// row are contiguous, otherwise several.
pub(super) fn together(piece: &Piece, row: u64) -> u64 {
    let left = piece.row_count().saturating_sub(row);
    if by_rows(piece) { 1 } else { left.min(ROWS) }
}

/// Whether neighbouring columns of a row are stored closer together than neighbouring rows of a
/// column.
fn by_rows(piece: &Piece) -> bool {
    // Distance from the first to the last of `count` integers.
    let spread = |axes: &[Axis], count: u64| {
        let mut left = count;
        axes.iter().rev().fold(1u64, |spread, axis| {
            let own = axis.len.min(left);
            left = left.div_ceil(axis.len.max(1));
            spread.saturating_add(own.saturating_sub(1).saturating_mul(axis.stride))
        })
    };
    let [of_row, of_column] = [spread(&piece.columns, COLUMNS), spread(&piece.rows, ROWS)];
    of_row.saturating_mul(ROWS) <= of_column.saturating_mul(COLUMNS)
}

/// Reads some rows and columns of a piece and writes them to `slots`. Each row gets the bytes that
/// fit its slot.
pub(super) fn read(
    piece: &Piece,
    integers: Integers,
    format: Format,
    part: &Part,
    fetch: &Fetch<'_>,
    slots: Slots<'_>,
) -> bool {
    let Part { rows, columns, .. } = part;
    let Slots { out, stride, at: slot } = slots;
    let Some(groups) = &piece.groups else { return false };
    let (block_len, block_bytes) = (format.block_len(), format.block_bytes());
    let of_rows: Vec<GroupElements> =
        rows.clone().map(|row| groups.elements(|view| view.first + at(&view.rows, row))).collect();
    let mut ordered = groups.order.as_ref().map(Ordered::new);
    let most = COLUMNS.min(columns.end - columns.start);
    let mut codes = vec![0u8; of_rows.len() * most as usize];
    let mut from = columns.start;
    while from < columns.end {
        let end = from + COLUMNS.min(columns.end - from);
        let (part, count) = (from..end, (end - from) as usize);
        let codes = &mut codes[..of_rows.len() * count];
        if !read_codes(piece, integers, rows, &part, codes, fetch) {
            return false;
        }
        let firsts = part.clone().step_by(block_len);
        let of_blocks: Vec<GroupElements> =
            firsts.map(|column| groups.elements(|view| at(&view.columns, column))).collect();
        let begin = slot.start + (from - columns.start) as usize / block_len * block_bytes;
        let lines = out.chunks_exact_mut(stride).zip(codes.chunks_exact(count));
        for (line, ((out, codes), of_row)) in lines.zip(&of_rows).enumerate() {
            let blocks = out[begin..].chunks_exact_mut(block_bytes).zip(codes.chunks_exact(block_len));
            let mut known = None;
            if let Some(order) = &mut ordered
                && !order.read(rows.start + line as u64, &part, fetch)
            {
                return false;
            }
            for (column, ((block, codes), of_block)) in blocks.zip(&of_blocks).enumerate() {
                let elements = *of_row + *of_block;
                let group = ordered.as_ref().map(|order| order.of_columns[column]);
                let (scale, zero) = match (known, &mut ordered, group) {
                    (_, Some(order), Some(group)) => match order.numbers(groups, elements, group, fetch) {
                        Some(numbers) => numbers,
                        None => return false,
                    },
                    (Some((before, numbers)), ..) if before == elements => numbers,
                    _ => match groups.numbers(elements, fetch) {
                        Some(numbers) => numbers,
                        None => return false,
                    },
                };
                known = Some((elements, (scale, zero)));
                let scale = scale / integers.of_scale();
                if block_len > 1 {
                    format.put_group(codes, scale, zero, block);
                } else if !store(format, scale * integers.number(codes[0], zero), block) {
                    return false;
                }
            }
        }
        from = end;
    }
    true
}

/// A column order, with a cache of the groups that were read last.
struct Ordered<'o> {
    order: &'o Order,
    /// Key of the cache `of_columns`: the element index of the row's first group number, and the
    /// first column.
    there: Option<(u64, u64)>,
    of_columns: Vec<u64>,
    /// Cache of scales and zero points by group. Its key is the element indices for group 0.
    known: Vec<Option<(f32, Option<u8>)>>,
    of: Option<GroupElements>,
}

impl<'o> Ordered<'o> {
    fn new(order: &'o Order) -> Ordered<'o> {
        Ordered { order, there: None, of_columns: Vec::new(), known: vec![None; order.groups as usize], of: None }
    }

    /// Reads the group numbers of some columns of a row. Returns false if a number cannot be read
    /// or is too large.
    fn read(&mut self, row: u64, columns: &Range<u64>, fetch: &Fetch<'_>) -> bool {
        let Order { view, groups, .. } = self.order;
        let base = view.first + at(&view.rows, row);
        // Most rows have the same groups as the row before.
        if self.there == Some((base, columns.start)) {
            return true;
        }
        let group = |column: u64| {
            let mut bytes = [0; 4];
            view.read(base + at(&view.columns, column), &mut bytes, fetch)?;
            Some(u64::from(u32::from_le_bytes(bytes))).filter(|group| group < groups)
        };
        self.of_columns.clear();
        self.of_columns.extend(columns.clone().map_while(group));
        self.there = Some((base, columns.start));
        self.of_columns.len() as u64 == columns.end - columns.start
    }

    /// Returns the scale and zero point of a group. `first` are the element indices for group 0.
    fn numbers(
        &mut self,
        groups: &Groups,
        first: GroupElements,
        group: u64,
        fetch: &Fetch<'_>,
    ) -> Option<(f32, Option<u8>)> {
        if self.of != Some(first) {
            self.of = Some(first);
            self.known.fill(None);
        }
        let known = self.known.get_mut(group as usize)?;
        if known.is_none() {
            let [scale, zero] = self.order.steps.map(|step| group * step);
            *known = groups.numbers(first + GroupElements { scale, zero }, fetch);
        }
        *known
    }
}

/// Reads the codes of some columns of some rows, row by row. Each code takes one byte.
fn read_codes(
    piece: &Piece,
    integers: Integers,
    rows: &Range<u64>,
    columns: &Range<u64>,
    codes: &mut [u8],
    fetch: &Fetch<'_>,
) -> bool {
    let offsets =
        |axes: &[Axis], numbers: &Range<u64>| -> Vec<u64> { numbers.clone().map(|number| at(axes, number)).collect() };
    let (of_rows, of_columns) = (offsets(&piece.rows, rows), offsets(&piece.columns, columns));
    let width = of_columns.len();
    // Contiguous elements are read together.
    let lines = if by_rows(piece) { [(of_rows, width), (of_columns, 1)] } else { [(of_columns, 1), (of_rows, width)] };
    let [(outer, outer_step), (inner, inner_step)] = lines;
    let (Some(&least), Some(&most)) = (inner.iter().min(), inner.iter().max()) else { return true };
    let element = Element::Integer(integers);
    let (mut there, mut stored) = (None, Vec::new());
    for (line, outer) in outer.iter().enumerate() {
        let base = piece.first + outer + least;
        // Reads the bytes of `count` elements. Returns the index of the first element within its
        // byte.
        let mut read = |first: u64, count: u64, stored: &mut Vec<u8>| -> Option<u64> {
            let (from, bytes) = element.span(first, count)?;
            if there != Some((from, bytes)) {
                stored.resize(bytes as usize, 0);
                let place = piece.extent.part(from, bytes)?;
                fetch(piece.extent.file, place, stored).then_some(())?;
                there = Some((from, bytes));
            }
            Some(first % integers.per_byte())
        };
        let slots = codes[line * outer_step..].iter_mut().step_by(inner_step);
        let slots = slots.zip(inner.iter().map(|inner| inner - least));
        if most - least > SPAN {
            for (code, inner) in slots {
                let Some(first) = read(base + inner, 1, &mut stored) else { return false };
                *code = integers.code(stored[0], first);
            }
            continue;
        }
        let Some(first) = read(base, most - least + 1, &mut stored) else { return false };
        match integers.per_byte() {
            2 => slots.for_each(|(code, inner)| *code = nibble(stored[(first + inner) as usize / 2], first + inner)),
            4 => slots.for_each(|(code, inner)| {
                *code = integers.code(stored[(first + inner) as usize / 4], first + inner);
            }),
            _ => slots.for_each(|(code, inner)| *code = integers.code(stored[inner as usize], 0)),
        }
    }
    true
}

#[cfg(test)]
mod tests;
