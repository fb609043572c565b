//! Access to a server: its keys, its names, and the origins of allowed pages.

use std::path::{Path, PathBuf};

use ixc_files::{ReadError, read_argument, read_system};
use ixc_serve::http::AllowedOrigin;

use super::BadInput;

/// Max bytes of a key file.
const MAX_KEY_BYTES: u64 = 1 << 20;

/// Options that decide who may send requests: API keys, hosts and origins.
#[derive(Debug, clap::Args)]
pub struct AccessChoice {
    /// API key that requests must send (Authorization: Bearer KEY). Other users can read it on the
    /// command line: prefer --api-key-file.
    #[arg(long, value_name = "KEY",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Vec<String>,
    /// File with API keys, one per line, without comments.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Serve other machines even without an API key. Without this, an address that they can reach
    /// needs a key.
    #[arg(long)]
    pub no_api_key: bool,
    /// Accept this host name in requests; repeatable. Without API keys the server accepts only
    /// localhost, addresses and the machine's own name, so that a web page cannot reach it by DNS
    /// rebinding.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    allowed_host: Vec<String>,
    // The text is help, not Markdown.
    #[allow(rustdoc::bare_urls)]
    /// Accept requests from web pages of this origin, such as https://chat.example, or of any (*);
    /// repeatable. Pages of this machine, of the server's own address and of each --allowed-host
    /// are always accepted.
    #[arg(long, value_name = "URL")]
    allowed_origin: Vec<AllowedOrigin>,
}

impl AccessChoice {
    /// Returns the API keys of `--api-key` and of the lines of `--api-key-file`.
    ///
    /// # Errors
    /// When the key file cannot be read, or a line is not a key.
    pub fn keys(&self) -> anyhow::Result<Vec<String>> {
        for key in &self.api_key {
            check_key(key).map_err(|wrong| BadInput(format!("--api-key: {wrong}")))?;
        }
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = match read_argument(path, MAX_KEY_BYTES) {
                Err(ReadError::Io { source, .. }) => return Err(ixc_error::Error::io(path, "read")(source).into()),
                other => other.map_err(|error| BadInput(error.to_string()))?,
            };
            keys.extend(keys_of(&text, path)?);
        }
        Ok(keys)
    }

    /// Returns the names of the server, without localhost and addresses. `host` is the name that it
    /// listens on.
    pub fn hosts(&self, host: &str) -> Vec<String> {
        let own = read_system(Path::new("/proc/sys/kernel/hostname")).unwrap_or_default();
        let own = own.trim();
        let names = [host.to_owned(), own.to_owned(), format!("{own}.local")];
        let is_name = |name: &&String| !own.is_empty() || **name == host;
        [&self.allowed_host[..], &names.iter().filter(is_name).cloned().collect::<Vec<_>>()].concat()
    }

    /// Returns whether requests to other host names are refused. They are refused without API keys,
    /// or if allowed names are set.
    pub fn checks_host(&self, keys: &[String]) -> bool {
        keys.is_empty() || !self.allowed_host.is_empty()
    }

    /// Returns the origins of `--allowed-origin`, whose web pages may send requests.
    pub fn origins(&self) -> Vec<AllowedOrigin> {
        self.allowed_origin.clone()
    }
}

/// Returns the keys in the text of a key file. A text without keys is an error.
fn keys_of(text: &str, path: &Path) -> Result<Vec<String>, BadInput> {
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        let wrong = |what: &str| BadInput(format!("{}: line {number}: {what}", path.display()));
        if line.starts_with('#') {
            return Err(wrong(
                "the line begins with #, like a comment; expected a file with one API key on each line and nothing else",
            ));
        }
        if !line.is_empty() {
            keys.push(check_key(line).map_err(|what| wrong(&what))?.to_owned());
        }
    }
    if keys.is_empty() {
        Err(BadInput(format!("{} has no API key; expected one API key on each line", path.display())))
    } else {
        Ok(keys)
    }
}

/// Returns the key, or the reason why an HTTP header cannot contain it.
fn check_key(key: &str) -> Result<&str, String> {
    match key.chars().find(|c| !matches!(c, ' '..='~')) {
        None => Ok(key),
        Some(c) => Err(format!("the key has {:?}; expected visible ASCII, since no client can send others", c)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_key_lines_are_refused_with_line_number() {
        let of = |text: &str| keys_of(text, Path::new("keys.txt")).map_err(|error| error.to_string());
        assert_eq!(of("alpha\r\n  beta  \n\n"), Ok(vec!["alpha".to_owned(), "beta".to_owned()]));
        for (text, says) in [
            ("alpha\n\n # comment\n", "keys.txt: line 3: the line begins with #"),
            ("alpha\ng\u{e4}mma\n", "keys.txt: line 2: the key has 'ä'"),
            ("al\u{0}pha", "line 1: the key has '\\0'"),
            ("\n  \n", "keys.txt has no API key"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
