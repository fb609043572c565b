//! Text tests of passes: each file of a folder is lines that say how, a module, and what it becomes. `IXC_BLESS=1` rewrites the last.
//!
//! ```text
//! // passes: pack
//! weight @w : q4_k[512, 256]
//! // becomes
//! weight @w : q4_k[512, 256] {layout = q4_k_r16}
//! ```

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

const BECOMES: &str = "// becomes\n";

/// What the line of this name says, for each that there is.
pub fn said<'t>(input: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let start = format!("// {name}: ");
    input.lines().filter_map(move |line| line.strip_prefix(&start))
}

/// A file.
#[derive(Debug)]
pub struct Example {
    /// Where it stands.
    pub path: PathBuf,
    /// What stands before `// becomes`.
    pub input: String,
    /// What stands behind it.
    pub expected: String,
}

/// The files of a folder in the order of their names.
///
/// # Errors
/// When the folder or a file cannot be read.
///
/// # Panics
/// When there is none.
pub fn files(folder: &Path) -> Result<Vec<Example>, Box<dyn Error>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path)?;
        let (input, expected) = text.split_once(BECOMES).unwrap_or((&text, ""));
        Ok(Example { path, input: input.to_owned(), expected: expected.to_owned() })
    };
    paths.into_iter().map(read).collect()
}

/// Holds each file of a folder against what `run` makes of it; an error is text, too.
///
/// # Errors
/// When a file cannot be read or written.
///
/// # Panics
/// When one is not as it says.
pub fn check(folder: &Path, run: impl Fn(&str) -> Result<String, Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let mut wrong = Vec::new();
    for Example { path, input, expected } in files(folder)? {
        let made = run(&input).unwrap_or_else(|error| format!("error: {error}\n"));
        if made == expected {
            continue;
        }
        if std::env::var_os("IXC_BLESS").is_some() {
            fs::write(&path, format!("{input}{BECOMES}{made}"))?;
        } else {
            wrong.push(format!("{}: expected\n{expected}got\n{made}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\nIXC_BLESS=1 accepts these", wrong.join("\n"));
    Ok(())
}
