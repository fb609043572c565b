//! External tools that a test uses if they are installed. A test accepts only the versions for
//! which its expectations were made.
//!
//! A test finds its tool with [`Tool::find`], which prints one line. The line is
//! `tool: llvm-mca 19.1.7 ...`, or `NOT RUN: ...` with the needed version and the installed
//! versions. `.ci/run` collects these lines.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An optional external tool.
pub struct Tool {
    /// Name of the tool.
    pub name: &'static str,
    /// Names of programs to look for, in this order.
    pub programs: &'static [&'static str],
    /// Environment variable with the path of a program to use instead.
    pub variable: Option<&'static str>,
    /// Arguments that make the program print its version.
    pub version_arguments: &'static [&'static str],
    /// Text that precedes the version in the program's output.
    pub before: &'static str,
    /// Text that describes the needed version.
    pub needed_version: &'static str,
    /// Returns whether a version is suitable.
    pub is_suitable: fn(&[u32]) -> bool,
}

/// LLVM's pipeline simulator. Its tables differ by version; the tables of `docs/cost-model.md` were
/// made with 19.
pub const LLVM_MCA: Tool = Tool {
    name: "llvm-mca",
    programs: &["llvm-mca-19", "llvm-mca"],
    variable: None,
    version_arguments: &["--version"],
    before: "LLVM version ",
    needed_version: "19 (Debian: llvm-19)",
    is_suitable: |version| version.first() == Some(&19),
};

/// Browser for tests of pages. From version 112 on, its headless mode uses the code of the normal
/// browser.
pub const CHROMIUM: Tool = Tool {
    name: "Chromium",
    programs: &["chromium", "chromium-browser", "google-chrome"],
    variable: Some("IXC_CHROMIUM"),
    version_arguments: &["--version"],
    before: "",
    needed_version: "112 or later (Debian: chromium)",
    is_suitable: |version| version >= &[112][..],
};

/// Python with the emulator Bochs. `emulator/tests/emulator/bochs/judge.py` has the steps to
/// install it.
pub const BOCHS: Tool = Tool {
    name: "bochscpu",
    programs: &[],
    variable: Some("IXC_BOCHS"),
    version_arguments: &["-c", "import importlib.metadata as m; print('bochscpu', m.version('bochscpu-python'))"],
    before: "bochscpu ",
    needed_version: "0.4.0, in the Python that IXC_BOCHS names",
    is_suitable: |version| version == [0, 4, 0],
};

/// GNU as. Version 2.40 is the first that has every instruction of every target; `tdpfp16ps` of
/// Granite Rapids was added last.
pub const GNU_AS: Tool = Tool {
    name: "GNU as",
    programs: &["as"],
    variable: None,
    version_arguments: &["--version"],
    before: "GNU assembler",
    needed_version: "2.40 or later (Debian: binutils)",
    is_suitable: |version| version >= &[2, 40][..],
};

/// Bash, which tests use to read generated completions.
pub const BASH: Tool = Tool {
    name: "bash",
    programs: &["bash"],
    variable: None,
    version_arguments: &["--version"],
    before: "version ",
    needed_version: "4 or later",
    is_suitable: |version| version >= &[4][..],
};

/// Zsh, which tests use to read generated completions.
pub const ZSH: Tool = Tool {
    name: "zsh",
    programs: &["zsh"],
    variable: None,
    version_arguments: &["--version"],
    before: "zsh ",
    needed_version: "5 or later",
    is_suitable: |version| version >= &[5][..],
};

/// Fish, which tests use to read generated completions.
pub const FISH: Tool = Tool {
    name: "fish",
    programs: &["fish"],
    variable: None,
    version_arguments: &["--version"],
    before: "version ",
    needed_version: "3 or later",
    is_suitable: |version| version >= &[3][..],
};

/// Groff, which typesets manual pages.
pub const GROFF: Tool = Tool {
    name: "groff",
    programs: &["groff"],
    variable: None,
    version_arguments: &["--version"],
    before: "groff version ",
    needed_version: "1.22 or later (Debian: groff)",
    is_suitable: |version| version >= &[1, 22][..],
};

/// An installed tool in a suitable version.
#[derive(Debug)]
pub struct InstalledTool {
    /// Path of the program.
    pub program: PathBuf,
    /// The version that the program prints.
    pub version: String,
}

impl Tool {
    /// Returns the tool if it is installed in the needed version. Prints one line: the tool, or the
    /// statement that `test` did not run, with the reason.
    pub fn find(&self, test: &str) -> Option<InstalledTool> {
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

    /// Searches the folders of `path` for the tool. If `named` is set, only the program with this
    /// path is tried. `version_output` returns the output of a program that prints its version.
    ///
    /// # Errors
    /// Returns the needed version and the installed versions.
    fn look(
        &self,
        path: &OsStr,
        named: Option<&OsStr>,
        version_output: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<InstalledTool, String> {
        let candidates: Vec<PathBuf> = match named {
            Some(named) => vec![named.into()],
            None => self.programs.iter().filter_map(|program| on(path, program)).collect(),
        };
        let mut others = Vec::new();
        for program in candidates {
            match version_output(&program).and_then(|text| self.version(&text)) {
                Ok((version, numbers)) if (self.is_suitable)(&numbers) => {
                    return Ok(InstalledTool { program, version });
                }
                Ok((version, _)) => others.push(format!("{} is {version}", program.display())),
                Err(why) => others.push(format!("{}: {why}", program.display())),
            }
        }
        let found = if others.is_empty() { "none found".to_owned() } else { others.join(", ") };
        Err(format!("needs {} {}: {found}", self.name, self.needed_version))
    }

    fn output(&self, program: &Path) -> Result<String, String> {
        let out = Command::new(program).args(self.version_arguments).output().map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Returns the version in a program's output, as text and as numbers.
    fn version(&self, text: &str) -> Result<(String, Vec<u32>), String> {
        let rest = text.lines().find_map(|line| Some(line.split_once(self.before)?.1));
        // `GNU assembler (GNU Binutils for Debian) 2.40`: the version is the first word that starts
        // with a digit.
        let mut words = rest.unwrap_or_default().split_whitespace();
        let version =
            words.find(|word| word.starts_with(|c: char| c.is_ascii_digit())).ok_or("does not state its version")?;
        let numbers = version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok()).collect();
        Ok((version.to_owned(), numbers))
    }
}

/// Returns the first program with the name `program` in the folders of `path`.
fn on(path: &OsStr, program: &str) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a folder with empty files of these names, as stand-ins for programs. The test
    /// supplies the output of these programs.
    fn folder(programs: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for program in programs {
            std::fs::write(folder.path().join(program), "").unwrap();
        }
        folder
    }

    /// Regression test for issue 16: a distribution's llvm-mca 14 was accepted, although its tables
    /// differ.
    #[test]
    fn a_tool_of_another_version_is_not_taken() {
        let folders = (folder(&["llvm-mca"]), folder(&["llvm-mca-19"]));
        let (old, new) = (folders.0.path(), folders.1.path());
        let version_output = |program: &Path| {
            let version = if program.ends_with("llvm-mca-19") { "19.1.7" } else { "14.0.6" };
            Ok(format!("Debian LLVM version {version}\n  Optimized build."))
        };
        let why = LLVM_MCA.look(old.as_os_str(), None, &version_output).unwrap_err();
        let expected = format!("needs llvm-mca 19 (Debian: llvm-19): {} is 14.0.6", old.join("llvm-mca").display());
        assert_eq!(why, expected);
        let why = LLVM_MCA.look(OsStr::new(""), None, &version_output).unwrap_err();
        assert_eq!(why, "needs llvm-mca 19 (Debian: llvm-19): none found");

        let both = std::env::join_paths([old, new]).unwrap();
        let found = LLVM_MCA.look(&both, None, &version_output).unwrap();
        assert_eq!((found.program, found.version.as_str()), (new.join("llvm-mca-19"), "19.1.7"));
    }

    #[test]
    fn versions_are_read_as_tools_state_them() {
        let folder = folder(&["as"]);
        let path = folder.path();
        for (version, is_suitable) in [("2.40", true), ("2.38.50.20220707", false), ("2.43.1", true), ("10.1", true)] {
            let version_output =
                |_: &Path| Ok(format!("GNU assembler (GNU Binutils for Debian) {version}\nCopyright (C) 2023"));
            assert_eq!(GNU_AS.look(path.as_os_str(), None, &version_output).is_ok(), is_suitable, "{version}");
        }
        let named = Some(OsStr::new("/a/python"));
        let found = BOCHS.look(OsStr::new(""), named, &|_| Ok("bochscpu 0.4.0\n".into())).unwrap();
        assert_eq!((found.program, found.version.as_str()), (PathBuf::from("/a/python"), "0.4.0"));
        let why = BOCHS.look(OsStr::new(""), named, &|_| Ok(String::new())).unwrap_err();
        assert!(why.ends_with("IXC_BOCHS names: /a/python: does not state its version"), "{why}");
    }
}
