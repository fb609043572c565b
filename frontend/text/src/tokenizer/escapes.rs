//! Escapes in the token texts of RWKV's vocabularies.

/// Returns the bytes of a token from its text in a file. The escapes are `\t`, `\n`, `\r` and
/// `\xNN`; a backslash before any other character is dropped. `None` if a backslash ends the text,
/// or if two digits do not follow `\x`.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        bytes.push(match byte {
            b'\\' => match left.next()? {
                b't' => b'\t',
                b'n' => b'\n',
                b'r' => b'\r',
                b'x' => {
                    let mut digit = || char::from(left.next()?).to_digit(16);
                    (digit()? * 16 + digit()?) as u8
                }
                other => other,
            },
            byte => byte,
        });
    }
    Some(bytes)
}
