//! Text tests: each file of a folder has one case, or several cases that each begin with `;; NAME`.
//! A case has lines of settings, then a module or a kernel, then the expected text or error.
//! `IXC_BLESS=1` rewrites the expected text.
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

use crate::bless;

const BECOMES: &str = "// becomes\n";
const CASE: &str = "\n;; ";

/// Returns the values of all setting lines `// NAME: VALUE` with this name.
pub fn setting_values<'t>(input: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let start = format!("// {name}: ");
    input.lines().filter_map(move |line| line.strip_prefix(&start))
}

/// A test case.
#[derive(Debug)]
pub struct Example {
    /// File of the test case.
    pub path: PathBuf,
    /// Text before `// becomes`. Line numbers in errors count from the start of this text.
    pub input: String,
    /// Text after `// becomes`.
    pub expected: String,
}

/// Returns the cases of all files in a folder, in the order of the files' names.
///
/// # Errors
/// Fails if the folder or a file cannot be read.
///
/// # Panics
/// If there are no cases.
pub fn files(folder: &Path) -> Result<Vec<Example>, Box<dyn Error>> {
    Ok(read(folder)?.into_iter().flat_map(|file| file.cases).collect())
}

/// Compares the expected text of each case in a folder with the output of `run`. If `run` fails,
/// the output is the text of the error.
///
/// # Errors
/// Fails if a file cannot be read or written.
///
/// # Panics
/// If the output of a case differs.
pub fn check(folder: &Path, run: impl Fn(&str) -> Result<String, Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let mut wrong = Vec::new();
    for File { path, head, cases } in read(folder)? {
        let (mut blessed, before) = (Vec::new(), wrong.len());
        for Example { input, expected, .. } in cases {
            let made = run(&input).unwrap_or_else(|error| format!("error: {error}\n"));
            if made != expected {
                wrong.push(format!("{}: of\n{input}expected\n{expected}got\n{made}", path.display()));
            }
            blessed.push(format!("{input}{BECOMES}{made}"));
        }
        if wrong.len() > before && bless::is_asked_for() {
            fs::write(&path, head + &blessed.join("\n"))?;
            wrong.truncate(before);
        }
    }
    assert!(wrong.is_empty(), "{}\nIXC_BLESS=1 accepts these", wrong.join("\n"));
    Ok(())
}

struct File {
    path: PathBuf,
    /// Text before the first case of a file with several cases.
    head: String,
    cases: Vec<Example>,
}

fn read(folder: &Path) -> Result<Vec<File>, Box<dyn Error>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "ix"));
    paths.sort();
    assert!(!paths.is_empty(), "{} has no .ix files", folder.display());
    let read = |path: PathBuf| {
        // With the added newline, the first line of the file can begin a case.
        let text = format!("\n{}", fs::read_to_string(&path)?);
        let case = |text: String| {
            let (input, expected) = text.split_once(BECOMES).unwrap_or((&text, ""));
            Example { path: path.clone(), input: input.to_owned(), expected: expected.to_owned() }
        };
        let (head, cases) = match text.split_once(CASE) {
            None => (String::new(), vec![case(text[1..].to_owned())]),
            Some((head, rest)) => {
                let head = head.strip_prefix('\n').map_or_else(String::new, |head| format!("{head}\n"));
                (head, rest.split(CASE).map(|text| case(format!(";; {text}"))).collect())
            }
        };
        Ok(File { path, head, cases })
    };
    paths.into_iter().map(read).collect()
}
