//! Checks of derived tensors, which may be in hostile plans.

use super::{Change, Derivation, Element, Extent, MAX_AXES, Piece, ScaleKind, Scales, Tiles, groups, last, len, tiles};
use crate::format::Format;

/// Reason why a derived tensor is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DerivedError {
    /// A piece in a file that does not exist.
    #[error("piece {piece} is in file {file}; the model has {files} files")]
    File {
        /// Index of the piece.
        piece: usize,
        /// Index of the missing file.
        file: u32,
        /// Number of files.
        files: usize,
    },
    /// A view or scales that extend beyond their file or tensor.
    #[error("piece {piece}: the end of {what} is after the {available} available bytes")]
    Outside {
        /// Index of the piece.
        piece: usize,
        /// Name of the bytes that are outside, for the message.
        what: &'static str,
        /// Number of bytes in the file or tensor.
        available: u64,
    },
    /// Properties of a piece that contradict each other.
    #[error("piece {piece}: {what}")]
    Shape {
        /// Index of the piece.
        piece: usize,
        /// Description of the contradiction.
        what: &'static str,
    },
}

impl Derivation {
    /// Checks that every element lies inside the files, whose lengths are `files`. Also checks that
    /// the properties of each piece agree.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self, files: &[u64]) -> Result<(), DerivedError> {
        if self.bytes().is_none() || self.columns == 0 {
            return Err(DerivedError::Shape { piece: 0, what: "no columns, or too many rows" });
        }
        self.check_beside()?;
        for (number, piece) in self.pieces.iter().enumerate() {
            let check = Check { derived: self, number, piece };
            check.extents(files)?;
            let elements = check.view()?;
            check.elements(elements)?;
        }
        Ok(())
    }

    /// Checks that pieces that form rows together have equal numbers of rows. Their columns
    /// together must be the columns of the tensor.
    fn check_beside(&self) -> Result<(), DerivedError> {
        let pieces_per_row = self.pieces_per_row as usize;
        let wrong = |piece, what| Err(DerivedError::Shape { piece, what });
        if pieces_per_row == 0 || !self.pieces.len().is_multiple_of(pieces_per_row) {
            return wrong(self.pieces.len(), "the number of pieces is not a multiple of the pieces side by side");
        }
        if pieces_per_row > 1 && self.format.tail_bytes() > 0 {
            return wrong(0, "pieces side by side in a format with one scale for the whole row");
        }
        let block = self.format.block_len() as u64;
        for (number, group) in self.pieces.chunks_exact(pieces_per_row).enumerate() {
            let columns = group.iter().try_fold(0u64, |columns, piece| {
                let own = piece.column_count().filter(|own| pieces_per_row == 1 || own.is_multiple_of(block))?;
                columns.checked_add(own)
            });
            if columns != Some(self.columns) {
                return wrong(number * pieces_per_row, "columns do not match the derived tensor");
            }
            if group.iter().any(|piece| len(&piece.rows) != len(&group[0].rows)) {
                return wrong(number * pieces_per_row, "rows do not match the pieces next to it");
            }
        }
        Ok(())
    }
}

/// Check of one piece of a derived tensor.
struct Check<'a> {
    derived: &'a Derivation,
    /// Index of the piece.
    number: usize,
    piece: &'a Piece,
}

impl Check<'_> {
    fn wrong<T>(&self, what: &'static str) -> Result<T, DerivedError> {
        Err(DerivedError::Shape { piece: self.number, what })
    }

    fn outside<T>(&self, what: &'static str, available: u64) -> Result<T, DerivedError> {
        Err(DerivedError::Outside { piece: self.number, what, available })
    }

    /// Checks that stored tensors lie inside their files.
    fn extents(&self, files: &[u64]) -> Result<(), DerivedError> {
        let of_groups = self.piece.groups.iter().flat_map(|groups| groups.extents());
        let of_scales = self.piece.scales.iter().flat_map(Scales::extents);
        for extent in [self.piece.extent].into_iter().chain(of_scales).chain(of_groups) {
            let Some(&available) = files.get(extent.file as usize) else {
                return Err(DerivedError::File { piece: self.number, file: extent.file, files: files.len() });
            };
            if extent.offset.checked_add(extent.bytes).is_none_or(|end| end > available) {
                return self.outside("a stored tensor", available);
            }
        }
        Ok(())
    }

    /// Checks that the view lies inside the stored tensor. Returns the number of its elements up to
    /// the last one of the view.
    fn view(&self) -> Result<u64, DerivedError> {
        let Piece { rows, columns, extent, element, first, .. } = self.piece;
        if rows.len() > MAX_AXES || columns.len() > MAX_AXES {
            return self.wrong("too many axes");
        }
        if rows.iter().chain(columns).any(|axis| axis.len == 0) {
            return self.wrong("an axis has length 0");
        }
        let elements = last(*first, rows, columns).and_then(|last| last.checked_add(1));
        let end = elements.and_then(|elements| element.bytes_of(elements));
        match elements {
            Some(elements) if end.is_some_and(|end| end <= extent.bytes) => Ok(elements),
            _ => self.outside("its view", extent.bytes),
        }
    }

    /// Checks that elements, scales and format agree.
    fn elements(&self, elements: u64) -> Result<(), DerivedError> {
        let (piece, format) = (self.piece, self.derived.format);
        let is_float = [Format::F32, Format::F16, Format::Bf16].contains(&format);
        if piece.change == Change::Unit && (self.derived.pieces_per_row > 1 || !is_float) {
            return self.wrong("rows normalised to length 1 must be whole rows of plain numbers");
        }
        if piece.groups.is_some() && !matches!(piece.element, Element::Integer(_)) {
            return self.wrong("groups without integers");
        }
        match (piece.element, piece.scales.as_ref()) {
            (Element::Integer(integers), _) => match groups::wrong(piece, integers, format) {
                Some(what) => self.wrong(what),
                None => Ok(()),
            },
            (Element::Tiled(tiles), scales) => self.tiles(tiles, scales),
            (Element::Mxfp4 | Element::Nvfp4, Some(Scales { kind: ScaleKind::OfBlock, extent, .. })) => {
                self.blocks(elements, extent)
            }
            (Element::Mxfp4 | Element::Nvfp4, _) => self.wrong("blocks lack scales"),
            (_, Some(Scales { kind: ScaleKind::OfBlock, .. })) => {
                self.wrong("block scales of elements that are not blocks")
            }
            (Element::Stored(stored), scales) => {
                let is_whole = stored.rows() == 1 && stored.tail_bytes() == 0 && stored.block_bytes() > 0;
                match stored == format && is_whole && piece.change == Change::Keep && scales.is_none() {
                    true => Ok(()),
                    false => self.wrong("stored blocks must be copied to their own format, which has no tails"),
                }
            }
            (Element::Block(format), _) if format.row().gguf_id.is_none() => {
                self.wrong("blocks in a format that is not a file format")
            }
            (Element::Block(_), Some(_)) => self.wrong("separate scales for a format that contains scales"),
            (
                _,
                Some(Scales {
                    kind:
                        ScaleKind::Number(
                            Element::Mxfp4
                            | Element::Nvfp4
                            | Element::F8E4m3
                            | Element::Block(_)
                            | Element::Stored(_)
                            | Element::Tiled(_)
                            | Element::Integer(_)
                            | Element::Nf4
                            | Element::Fp4,
                        ),
                    ..
                }),
            ) => self.wrong("scales that are not numbers of two or four bytes"),
            _ if !is_float => self.wrong("numbers cannot be converted to this format"),
            (_, None) => Ok(()),
            (_, Some(scales)) => self.scales(elements, scales),
        }
    }

    /// Checks integers in tiles, which need one f32 scale for each row.
    fn tiles(&self, tiles: Tiles, scales: Option<&Scales>) -> Result<(), DerivedError> {
        if !tiles::fits(self.piece, tiles, self.derived.format) {
            return self.wrong("tiles must be whole, read row by row, and in a format with the same integers");
        }
        let Tiles { rows, columns, .. } = tiles;
        match scales {
            Some(Scales {
                kind: ScaleKind::Number(Element::F32),
                extent,
                block_rows: 1,
                block_columns,
                columns: of,
            }) if [*block_columns, *of] == [columns; 2] => match rows.checked_mul(4) {
                Some(bytes) if bytes <= extent.bytes => Ok(()),
                _ => self.outside("its scales", extent.bytes),
            },
            _ => self.wrong("tiles lack an f32 scale for each row"),
        }
    }

    /// Checks blocks of codes whose scales are stored separately, in `extent`.
    fn blocks(&self, elements: u64, extent: &Extent) -> Result<(), DerivedError> {
        let element = self.piece.element;
        if self.derived.format != element.scaled_format() || self.piece.change != Change::Keep {
            return self.wrong("blocks of another format");
        }
        let each = element.codes_apart().map_or(0, |codes| codes.scales);
        if elements.checked_mul(each).is_none_or(|bytes| bytes > extent.bytes) {
            return self.outside("its scales", extent.bytes);
        }
        Ok(())
    }

    /// Checks scales that are plain numbers, one for each block of rows and columns.
    fn scales(&self, elements: u64, scales: &Scales) -> Result<(), DerivedError> {
        if scales.block_rows == 0 || scales.block_columns == 0 || scales.columns == 0 {
            return self.wrong("scales for no rows or columns");
        }
        let last_row = (elements - 1) / scales.columns / scales.block_rows;
        let each = scales.columns.div_ceil(scales.block_columns);
        let count = last_row.checked_add(1).and_then(|rows| rows.checked_mul(each));
        if !count.is_some_and(|count| scales.has(count)) {
            return self.outside("its scales", scales.extent.bytes);
        }
        Ok(())
    }
}
