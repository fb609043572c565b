//! Alphabet of GPT-2. It writes each byte as one printable character, so that vocabularies of byte
//! strings are readable.
//!
//! Printable Latin-1 bytes are written as the same character. The other 68 bytes are written as
//! U+0100, U+0101 and so on, in order (`bytes_to_unicode` in GPT-2's `encoder.py`). A space is `Ġ`,
//! and a newline is `Ċ`.

/// Number of bytes that are not printable. They are written as characters from U+0100 on.
const REMAPPED_BYTES: u32 = 68;

/// Returns whether a byte is written as the same character.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// Bytes that are not printable. `BYTES[n]` is written as the character U+0100 + n.
const BYTES: [u8; REMAPPED_BYTES as usize] = {
    let mut bytes = [0; REMAPPED_BYTES as usize];
    let (mut byte, mut n) = (0, 0);
    while byte < 256 {
        if !is_plain(byte as u8) {
            bytes[n] = byte as u8;
            n += 1;
        }
        byte += 1;
    }
    bytes
};

/// Returns the character that a byte is written as.
pub fn letter(byte: u8) -> char {
    if is_plain(byte) {
        return byte as char;
    }
    let shift = BYTES.iter().position(|&b| b == byte).unwrap_or_default() as u32;
    char::from_u32(0x100 + shift).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Returns the byte that a character stands for; `None` for other characters.
pub fn byte(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ 0..=0xff => is_plain(code as u8).then_some(code as u8),
        code => BYTES.get((code - 0x100) as usize).copied(),
    }
}

/// Returns the bytes of a token's text. Characters that stand for no byte become their UTF-8.
pub fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_letters_are_a_bijection_matching_published_points() {
        for b in 0..=255 {
            assert_eq!(byte(letter(b)), Some(b));
        }
        assert_eq!((letter(b' '), letter(b'\n'), letter(0), letter(0xad)), ('Ġ', 'Ċ', 'Ā', 'Ń'));
        assert_eq!(byte('日'), None);
        assert_eq!(decode("Ġhi日"), " hi日".as_bytes());
    }
}
