//! Grids by name, and from TOML files.
//!
//! ```
//! let grid = ixc_dataflow::grids::find("wse3")?;
//! assert_eq!((grid.width, grid.pe.sram_bytes), (762, 48 << 10));
//! # Ok::<(), ixc_dataflow::grids::GridFileError>(())
//! ```
//!
//! Invariant: all returned grids are checked.

use std::path::Path;

use ixc_failure::Class;

use crate::grid::{Grid, GridError};

/// Built-in grid files, with their names.
pub const GRIDS: &[(&str, &str)] = &[
    ("wse3", include_str!("grids/wse3.toml")),
    ("wse2", include_str!("grids/wse2.toml")),
    ("aie", include_str!("grids/aie.toml")),
    ("tiny", include_str!("grids/tiny.toml")),
    ("tiny-colours", include_str!("grids/tiny-colours.toml")),
    ("small", include_str!("grids/small.toml")),
    ("medium", include_str!("grids/medium.toml")),
];

/// Max bytes of a file; built-in files have about two thousand.
const MAX_BYTES: u64 = 1 << 20;

/// Reasons why a grid could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum GridFileError {
    /// The text is neither the name of a built-in grid nor a path of a file.
    #[error("there is no dataflow grid `{name}`; expected one of {names}, or a path that ends in .toml")]
    Unknown {
        /// The requested name or path.
        name: String,
        /// Names of the known grids.
        names: String,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ixc_files::ReadError),
    /// The text is not a valid grid.
    #[error("grid {name}: {message}")]
    Toml {
        /// Name or path of the grid file.
        name: String,
        /// The problem, and its location.
        message: String,
    },
    /// The numbers are invalid.
    #[error(transparent)]
    Grid(#[from] GridError),
}

impl GridFileError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            GridFileError::Read(error) => error.class(),
            GridFileError::Unknown { .. } => Class::Usage,
            GridFileError::Toml { .. } | GridFileError::Grid(_) => Class::Data,
        }
    }
}

/// Returns the path of the grid's file, unless `name` is a built-in grid.
pub fn file(name: &str) -> Option<&Path> {
    name.ends_with(".toml").then_some(Path::new(name))
}

/// Returns a grid by its name, or from a file whose path ends in `.toml`.
///
/// # Errors
/// See [`GridFileError`].
pub fn find(name: &str) -> Result<Grid, GridFileError> {
    if let Some((name, text)) = GRIDS.iter().find(|(known, _)| *known == name) {
        return parse(name, text);
    }
    let Some(path) = file(name) else {
        let names: Vec<&str> = GRIDS.iter().map(|(name, _)| *name).collect();
        return Err(GridFileError::Unknown { name: name.to_owned(), names: names.join(", ") });
    };
    parse(name, &ixc_files::read_text(path, MAX_BYTES)?)
}

/// Parses a grid. `name` is used in errors.
///
/// # Errors
/// The text is not TOML, has unknown fields, or invalid numbers.
pub fn parse(name: &str, text: &str) -> Result<Grid, GridFileError> {
    let grid: Grid = toml::from_str(text)
        .map_err(|error| GridFileError::Toml { name: name.to_owned(), message: error.to_string() })?;
    grid.check()?;
    Ok(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_have_file_names_and_list_unpublished_fields() {
        for (name, text) in GRIDS {
            let grid = find(name).unwrap();
            assert_eq!(grid.name, *name);
            assert!(!grid.sources.is_empty(), "{name}");
            let fields: toml::Table = text.parse().unwrap();
            for path in &grid.not_public {
                let mut at = Some(&toml::Value::Table(fields.clone())).cloned();
                for part in path.split('.') {
                    at = at.and_then(|value| value.get(part).cloned());
                }
                assert!(at.is_some(), "{name}: {path} is no field");
            }
        }
        assert_eq!(find("wse2").unwrap().pes(), 757 * 996);
    }

    #[test]
    fn invalid_grids_are_refused_with_valid_values() {
        let text = GRIDS[3].1;
        for (from, to, says) in [
            ("width = 8", "width = 0", "grid tiny: width is 0; it must be 1 to 16384"),
            ("width = 8", "width = 8\nhue = 3", "unknown field `hue`"),
            ("width = 8", "width = \"eight\"", "invalid type"),
            ("width = 8", "", "missing field `width`"),
            ("width = 8", "width = ", "grid here: "),
            ("edges = [\"west\", \"east\"]", "edges = []", "io.edges is []"),
            ("clock_hz = 1e9", "clock_hz = nan", "clock_hz is NaN"),
            ("routing = \"packets\"", "routing = { colours = 0 }", "link.routing.colours is 0"),
        ] {
            assert!(text.contains(from));
            let error = parse("here", &text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(says), "{to}: {error}");
        }
        assert!(find("tini").unwrap_err().to_string().contains("wse3, wse2, aie, tiny"));
        assert!(find("no/such/file.toml").unwrap_err().to_string().contains("no/such/file.toml"));
    }

    #[test]
    fn a_file_that_never_ends_is_refused() {
        let path = std::env::temp_dir().join(format!("ixc-grid-{}.toml", std::process::id()));
        std::fs::write(&path, vec![b'#'; MAX_BYTES as usize + 1]).unwrap();
        let error = find(path.to_str().unwrap()).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(error, GridFileError::Read(ixc_files::ReadError::TooLong { .. })), "{error}");
    }
}
