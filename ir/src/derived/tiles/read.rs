//! Reading of rows from tiles, each with the scale of its row.

use super::Tiles;
use crate::derived::scales::scale;
use crate::derived::{Fetch, Part, Piece, Slots};
use crate::format::Format;

/// Reads some rows and columns of a piece and writes them to `slots`. Each row gets the bytes that
/// fit its slot.
pub(in crate::derived) fn read(
    piece: &Piece,
    tiles: Tiles,
    format: Format,
    part: &Part,
    fetch: &Fetch<'_>,
    slots: Slots<'_>,
) -> bool {
    let Part { rows, columns, ends } = part;
    let before = piece.first / tiles.columns;
    let rows = before + rows.start..before + rows.end;
    let tile = tiles.tile_columns();
    // Integers are read in whole tiles, even if only some columns of a tile are requested.
    let first = columns.start / tile * tile;
    let width = (columns.end.next_multiple_of(tile) - first) as usize;
    let mut integers = vec![0u8; (rows.end - rows.start) as usize * width];
    if !columns.is_empty() && !tiles.read(&piece.extent, rows.clone(), first, &mut integers, fetch) {
        return false;
    }
    let wanted = (columns.start - first) as usize..(columns.end - first) as usize;
    let slots = slots.out.chunks_exact_mut(slots.stride).map(|out| &mut out[slots.at.clone()]);
    for ((number, from), out) in rows.zip((0..).step_by(width.max(1))).zip(slots) {
        let mut d = [1f32];
        if let Some(scales) = &piece.scales
            && !scale(scales, number * tiles.columns, &mut d, fetch)
        {
            return false;
        }
        let integers: &mut [u8] = if columns.is_empty() { &mut [] } else { &mut integers[from..][wanted.clone()] };
        format.put_integers(integers, piece.change.apply(d[0]), *ends, out);
    }
    true
}
