//! Tools that a test uses where they are installed: each in the version that its expectations were made with, and in no other.
//!
//! A test asks for its tool with [`Tool::find`]. That prints one line either way: `tool: llvm-mca 19.1.7 ...`, or `NOT RUN: ...` with
//! the version wanted and those found. `.ci/run` collects these lines.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tool that need not be there.
pub struct Tool {
    /// What it is called.
    pub name: &'static str,
    /// Where to look: names of programs, in this order.
    pub programs: &'static [&'static str],
    /// An environment variable that names the program instead.
    pub variable: Option<&'static str>,
    /// Arguments with which it states its version.
    pub ask: &'static [&'static str],
    /// What comes before the version in what it says then.
    pub before: &'static str,
    /// The version that is needed, in words.
    pub wanted: &'static str,
    /// Whether a version is that.
    pub suits: fn(&[u32]) -> bool,
}

/// LLVM's simulator of pipelines. Tables differ by version; those of `docs/cost-model.md` were made with 19.
pub const LLVM_MCA: Tool = Tool {
    name: "llvm-mca",
    programs: &["llvm-mca-19", "llvm-mca"],
    variable: None,
    ask: &["--version"],
    before: "LLVM version ",
    wanted: "19 (Debian: llvm-19)",
    suits: |version| version.first() == Some(&19),
};

/// A browser that pages are tried in. Its headless mode is that of the browser itself from 112 on.
pub const CHROMIUM: Tool = Tool {
    name: "Chromium",
    programs: &["chromium", "chromium-browser", "google-chrome"],
    variable: Some("IXC_CHROMIUM"),
    ask: &["--version"],
    before: "",
    wanted: "112 or later (Debian: chromium)",
    suits: |version| version >= &[112][..],
};

/// A Python that has the emulator Bochs; `emulator/tests/emulator/bochs/judge.py` says how to get it.
pub const BOCHS: Tool = Tool {
    name: "bochscpu",
    programs: &[],
    variable: Some("IXC_BOCHS"),
    ask: &["-c", "import importlib.metadata as m; print('bochscpu', m.version('bochscpu-python'))"],
    before: "bochscpu ",
    wanted: "0.4.0, in the Python that IXC_BOCHS names",
    suits: |version| version == [0, 4, 0],
};

/// GNU as. 2.40 is the first that knows every instruction of every target, `tdpfp16ps` of Granite Rapids the last of them.
pub const GNU_AS: Tool = Tool {
    name: "GNU as",
    programs: &["as"],
    variable: None,
    ask: &["--version"],
    before: "GNU assembler",
    wanted: "2.40 or later (Debian: binutils)",
    suits: |version| version >= &[2, 40][..],
};

/// Shells, which read the completions that are made for them.
pub const BASH: Tool = Tool {
    name: "bash",
    programs: &["bash"],
    variable: None,
    ask: &["--version"],
    before: "version ",
    wanted: "4 or later",
    suits: |version| version >= &[4][..],
};

/// Likewise.
pub const ZSH: Tool = Tool {
    name: "zsh",
    programs: &["zsh"],
    variable: None,
    ask: &["--version"],
    before: "zsh ",
    wanted: "5 or later",
    suits: |version| version >= &[5][..],
};

/// Likewise.
pub const FISH: Tool = Tool {
    name: "fish",
    programs: &["fish"],
    variable: None,
    ask: &["--version"],
    before: "version ",
    wanted: "3 or later",
    suits: |version| version >= &[3][..],
};

/// What `man` sets pages with.
pub const GROFF: Tool = Tool {
    name: "groff",
    programs: &["groff"],
    variable: None,
    ask: &["--version"],
    before: "groff version ",
    wanted: "1.22 or later (Debian: groff)",
    suits: |version| version >= &[1, 22][..],
};

/// A tool in a version that suits.
#[derive(Debug)]
pub struct Found {
    /// The program.
    pub program: PathBuf,
    /// What it says its version is.
    pub version: String,
}

impl Tool {
    /// The tool, if it is here in the version that is needed; says in one line which it is, or that `test` did not run and why.
    pub fn find(&self, test: &str) -> Option<Found> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let named = self.variable.and_then(std::env::var_os);
        match self.look(&path, named.as_deref(), &|program| self.output(program)) {
            Ok(found) => {
                println!("tool: {} {} ({}), for: {test}", self.name, found.version, found.program.display());
                Some(found)
            }
            Err(why) => {
                println!("NOT RUN: {test}: {why}");
                None
            }
        }
    }

    /// Looks in the folders of `path`, or at the program that the variable names; `ask` gives what a program says of itself.
    ///
    /// # Errors
    /// What was wanted and what was found instead.
    fn look(
        &self,
        path: &OsStr,
        named: Option<&OsStr>,
        ask: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<Found, String> {
        let candidates: Vec<PathBuf> = match named {
            Some(named) => vec![named.into()],
            None => self.programs.iter().filter_map(|program| on(path, program)).collect(),
        };
        let mut others = Vec::new();
        for program in candidates {
            match ask(&program).and_then(|text| self.version(&text)) {
                Ok((version, numbers)) if (self.suits)(&numbers) => return Ok(Found { program, version }),
                Ok((version, _)) => others.push(format!("{} is {version}", program.display())),
                Err(why) => others.push(format!("{}: {why}", program.display())),
            }
        }
        let found = if others.is_empty() { "none found".to_owned() } else { others.join(", ") };
        Err(format!("needs {} {}: {found}", self.name, self.wanted))
    }

    fn output(&self, program: &Path) -> Result<String, String> {
        let out = Command::new(program).args(self.ask).output().map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// The version in what a program says of itself, and its numbers.
    fn version(&self, text: &str) -> Result<(String, Vec<u32>), String> {
        let rest = text.lines().find_map(|line| Some(line.split_once(self.before)?.1));
        // `GNU assembler (GNU Binutils for Debian) 2.40`: the first word that starts with a digit.
        let mut words = rest.unwrap_or_default().split_whitespace();
        let version =
            words.find(|word| word.starts_with(|c: char| c.is_ascii_digit())).ok_or("does not state its version")?;
        let numbers = version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok()).collect();
        Ok((version.to_owned(), numbers))
    }
}

/// The first program of this name in the folders of `path`.
fn on(path: &OsStr, program: &str) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with empty files of these names: what they would say, a test says for them.
    fn folder(programs: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for program in programs {
            std::fs::write(folder.path().join(program), "").unwrap();
        }
        folder
    }

    /// Issue 16: a distribution's llvm-mca 14 was taken, whose tables differ.
    #[test]
    fn a_tool_of_another_version_is_not_taken() {
        let folders = (folder(&["llvm-mca"]), folder(&["llvm-mca-19"]));
        let (old, new) = (folders.0.path(), folders.1.path());
        let ask = |program: &Path| {
            let version = if program.ends_with("llvm-mca-19") { "19.1.7" } else { "14.0.6" };
            Ok(format!("Debian LLVM version {version}\n  Optimized build."))
        };
        let why = LLVM_MCA.look(old.as_os_str(), None, &ask).unwrap_err();
        let expected = format!("needs llvm-mca 19 (Debian: llvm-19): {} is 14.0.6", old.join("llvm-mca").display());
        assert_eq!(why, expected);
        let why = LLVM_MCA.look(OsStr::new(""), None, &ask).unwrap_err();
        assert_eq!(why, "needs llvm-mca 19 (Debian: llvm-19): none found");

        let both = std::env::join_paths([old, new]).unwrap();
        let found = LLVM_MCA.look(&both, None, &ask).unwrap();
        assert_eq!((found.program, found.version.as_str()), (new.join("llvm-mca-19"), "19.1.7"));
    }

    #[test]
    fn versions_are_read_as_tools_state_them() {
        let folder = folder(&["as"]);
        let path = folder.path();
        for (version, suits) in [("2.40", true), ("2.38.50.20220707", false), ("2.43.1", true), ("10.1", true)] {
            let ask = |_: &Path| Ok(format!("GNU assembler (GNU Binutils for Debian) {version}\nCopyright (C) 2023"));
            assert_eq!(GNU_AS.look(path.as_os_str(), None, &ask).is_ok(), suits, "{version}");
        }
        let named = Some(OsStr::new("/a/python"));
        let found = BOCHS.look(OsStr::new(""), named, &|_| Ok("bochscpu 0.4.0\n".into())).unwrap();
        assert_eq!((found.program, found.version.as_str()), (PathBuf::from("/a/python"), "0.4.0"));
        let why = BOCHS.look(OsStr::new(""), named, &|_| Ok(String::new())).unwrap_err();
        assert!(why.ends_with("IXC_BOCHS names: /a/python: does not state its version"), "{why}");
    }
}
