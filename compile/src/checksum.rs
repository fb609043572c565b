//! Checksums of JSON files that `ixc` writes and reads back. The last field of an object is the
//! CRC-32 of the object's text.
//!
//! ```text
//! {"surprise":[3.2,0.01]}   ->   {"surprise":[3.2,0.01],"crc32":"8a1f09c2"}
//! ```
//!
//! The checksum of a line also covers the line's number in the file. It thus detects swapped lines
//! too.

/// Text before the digits of a checksum.
const CHECKSUM_START: &str = ",\"crc32\":\"";
/// Text after the digits of a checksum.
const CHECKSUM_END: &str = "\"}";
/// Digits of a checksum.
const DIGITS: usize = 8;

/// Error of a text that was changed after it was written, or that has no checksum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    /// The text should end with a checksum, but has none.
    #[error("the text has no checksum at its end")]
    Missing,
    /// The text's checksum differs from the stored one: the file is damaged or edited.
    #[error("the text is damaged or was edited: its checksum is {found}, expected {expected}")]
    Differs {
        /// Checksum computed from the text.
        found: String,
        /// Checksum that the text states.
        expected: String,
    },
}

/// Returns the checksum of a JSON text. The hash begins with `of`: the number of the line in its
/// file, or nothing.
fn checksum(of: &[u8], body: &str) -> String {
    let mut crc = crc32fast::Hasher::new();
    crc.update(of);
    crc.update(body.as_bytes());
    // `body` lacks the closing brace of the object, which the checksum also covers.
    crc.update(b"}");
    format!("{:08x}", crc.finalize())
}

/// Adds the checksum to the text of a JSON object with at least one field.
pub fn add_checksum(of: &[u8], text: &str) -> String {
    let body = text.strip_suffix('}').unwrap_or(text);
    format!("{body}{CHECKSUM_START}{}{CHECKSUM_END}", checksum(of, body))
}

/// Verifies the checksum of a text, and removes it.
///
/// # Errors
/// [`ChecksumError`].
pub fn remove_checksum(of: &[u8], text: &str) -> Result<String, ChecksumError> {
    let parts = text
        .trim_end()
        .strip_suffix(CHECKSUM_END)
        .and_then(|text| text.split_at_checked(text.len().checked_sub(DIGITS)?));
    let (body, expected) = parts.ok_or(ChecksumError::Missing)?;
    let body = body.strip_suffix(CHECKSUM_START).ok_or(ChecksumError::Missing)?;
    let found = checksum(of, body);
    match found == expected {
        true => Ok(format!("{body}}}")),
        false => Err(ChecksumError::Differs {
            found,
            expected: expected.chars().filter(|c| c.is_ascii_alphanumeric()).collect(),
        }),
    }
}

/// Verifies and removes the checksum of a text, if it has one.
///
/// # Errors
/// [`ChecksumError::Differs`].
pub fn unsealed_if_there(of: &[u8], text: &str) -> Result<String, ChecksumError> {
    match remove_checksum(of, text) {
        Err(ChecksumError::Missing) => Ok(text.to_owned()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_text_round_trips_and_detects_changes() {
        let (text, of) = ("{\"a\":[1,2.5],\"b\":\"ä\"}", b"line 3");
        let line = add_checksum(of, text);
        assert!(line.starts_with("{\"a\":[1,2.5],\"b\":\"ä\",\"crc32\":\"") && line.ends_with("\"}"), "{line}");
        assert_eq!(remove_checksum(of, &format!("{line}\n")).as_deref(), Ok(text));
        assert!(matches!(remove_checksum(b"line 4", &line), Err(ChecksumError::Differs { .. })));
        for at in 0..line.len() {
            let mut bytes = line.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            assert!(remove_checksum(of, &changed).is_err(), "{changed}");
        }
        for (text, found) in [("", ""), ("{}", "{}"), ("{\"a\":1}\n", "{\"a\":1}\n")] {
            assert_eq!(remove_checksum(of, text), Err(ChecksumError::Missing));
            assert_eq!(unsealed_if_there(of, text).as_deref(), Ok(found));
        }
        assert!(unsealed_if_there(of, &line.replace("2.5", "2.6")).is_err());
    }
}
